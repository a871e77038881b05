//! Tensor maps in memory: reading them for a copy, and changing them on the device.

use warpwright_ptx::TensormapField;
use warpwright_ptx::tensor_map::{
    Im2col, TENSOR_MAP_ALIGN, TENSOR_MAP_BYTES, TensorElement, TensorFill, TensorInterleave, TensorMap,
    TensorMode, TensorSwizzle,
};

use super::Issuer;
use super::bulk::GRAIN;
use super::reach::Need;
use crate::code::asynchronous::{Direction, Place};
use crate::code::layout::Slot;
use crate::context::Context;
use crate::events::problem::{self, Problem};
use crate::exec::global::{lane_value, lanes_of};
use crate::flow::Flow;
use crate::report::Space;
use crate::space::classify;
use crate::warp::Warp;

const BYTES: u64 = TENSOR_MAP_BYTES as u64;

impl Context<'_> {
    /// The tensor map that an operand of a lane points to, if it is one for tensors of `dims` dimensions and the mode of the instruction.
    pub(super) fn tensor_map(
        &mut self,
        warp: &Warp,
        issuer: Issuer,
        lane: usize,
        generic: u64,
        (dims, im2col): (usize, bool),
    ) -> Option<TensorMap> {
        match self.find_map(generic, dims, im2col) {
            Ok(map) => Some(map),
            Err(problem) => {
                self.bad_access(warp, issuer.pc, lane, &problem);
                None
            }
        }
    }

    fn find_map(&mut self, generic: u64, dims: usize, im2col: bool) -> Result<TensorMap, Problem> {
        let (space, address) = classify(generic);
        let problem =
            |kind, message: String, help| Problem { kind, message, help, address: (space, address) };
        if !address.is_multiple_of(TENSOR_MAP_ALIGN) {
            return Err(problem(
                "tensor-map-misaligned",
                format!("a tensor map at {address:#x}, which is no multiple of {TENSOR_MAP_ALIGN}"),
                "declare the parameter as .param .align 64 .b8 map[128]",
            ));
        }
        let bytes = self.map_bytes(space, address)?;
        let Some(map) = TensorMap::decode(&bytes) else {
            return Err(problem(
                "tensor-map-invalid",
                "the 128 bytes that the operand points to are no tensor map".to_owned(),
                "pass the address of an encoded map: with its name in mov, and cvta.param",
            ));
        };
        if let Err(error) = map.check() {
            return Err(problem(
                "tensor-map-invalid",
                format!("the tensor map is impossible: {error}"),
                "encode a map that follows the rules of cuTensorMapEncodeTiled or cuTensorMapEncodeIm2col",
            ));
        }
        if map.rank() != dims {
            return Err(problem(
                "tensor-map-rank",
                format!("the instruction is for {dims} dimensions and the tensor map has {}", map.rank()),
                "use the instruction for as many dimensions as the map has",
            ));
        }
        if im2col != matches!(map.mode, TensorMode::Im2col(_)) {
            let name = |im2col| if im2col { "im2col" } else { "tiled" };
            return Err(problem(
                "tensor-map-mode",
                format!(
                    "the instruction copies in {} mode and the tensor map is in {} mode",
                    name(im2col),
                    name(!im2col)
                ),
                "encode the map with cuTensorMapEncodeIm2col for .im2col, and with cuTensorMapEncodeTiled for .tile",
            ));
        }
        Ok(map)
    }

    /// Coordinates that devices refuse as an illegal instruction, though the manual allows them.
    pub(super) fn check_coordinates(
        &mut self,
        warp: &Warp,
        issuer: Issuer,
        lane: usize,
        direction: Direction,
        map: &TensorMap,
        coords: &[i32],
    ) -> Flow {
        let into = coords.first().map_or(0, |x| i64::from(*x) * map.element.bytes() as i64);
        let store = matches!(direction, Direction::Store { .. });
        let (message, help) = match coords.iter().position(|c| *c < 0) {
            Some(i) if store => (
                format!("coordinate {i} is {}, and a copy to global memory takes none below zero", coords[i]),
                "copy a box that begins within the tensor, or use ordinary stores for what lies before it",
            ),
            _ if into % GRAIN as i64 != 0 => (
                format!(
                    "the innermost coordinate is {into} bytes into a row, which is no multiple of {GRAIN}"
                ),
                "begin boxes at multiples of 16 bytes of the innermost dimension",
            ),
            _ => return Flow::Next,
        };
        let problem = Problem { kind: "box-coordinates", message, help, address: (Space::Global, map.base) };
        self.bad_access(warp, issuer.pc, lane, &problem)
    }

    /// The pixel at which a copy in im2col mode begins, and its offsets.
    pub(super) fn check_pixels(
        &mut self,
        warp: &Warp,
        issuer: Issuer,
        lane: usize,
        map: &TensorMap,
        coords: &[i32],
        offsets: &[u32],
    ) -> Flow {
        let TensorMode::Im2col(mode) = &map.mode else { return Flow::Next };
        let outside = (0..offsets.len()).find_map(|axis| {
            let (first, last) = mode.bounds(axis, map.dims[axis + 1]);
            let x = i64::from(coords[axis + 1]);
            (x < first || x > last).then_some((axis, x, first, last))
        });
        let most = Im2col::max_offset(map.rank()).unwrap_or(0);
        let (message, help) = match (outside, offsets.iter().find(|offset| **offset > most)) {
            (Some((axis, x, first, last)), _) => (
                format!(
                    "the copy begins at {x} along spatial dimension {axis}, and its bounding box goes from {first} to {last}"
                ),
                "begin at a pixel of the bounding box: offsets alone move what is read",
            ),
            (None, Some(offset)) => (
                format!(
                    "an offset of {offset} in a tensor of {} dimensions, which takes at most {most}",
                    map.rank()
                ),
                "have the map's corners or the coordinates say the rest",
            ),
            (None, None) => return Flow::Next,
        };
        let problem = Problem { kind: "box-coordinates", message, help, address: (Space::Global, map.base) };
        self.bad_access(warp, issuer.pc, lane, &problem)
    }

    fn map_bytes(&mut self, space: Space, address: u64) -> Result<Vec<u8>, Problem> {
        let image = match space {
            Space::Param => self.shared.params,
            Space::Const => &self.shared.constants,
            Space::Global => {
                let outside = || problem::range(self.shared.memory, address, BYTES, false);
                let allocation = self.allocation_at(address).ok_or_else(outside)?;
                let offset = address.wrapping_sub(allocation.base);
                if offset > allocation.len || BYTES > allocation.len - offset {
                    return Err(problem::range(self.shared.memory, address, BYTES, false));
                }
                let mut bytes = vec![0; TENSOR_MAP_BYTES];
                allocation.read(offset, &mut bytes);
                return Ok(bytes);
            }
            Space::Shared | Space::Local | Space::Generic | Space::Tensor => {
                return Err(Problem {
                    kind: "wrong-space",
                    message: format!("a tensor map in {} memory", space.name()),
                    help: "a tensor map is a parameter, or lies in constant or global memory",
                    address: (space, address),
                });
            }
        };
        let at = usize::try_from(address).unwrap_or(usize::MAX);
        let inside = at.checked_add(TENSOR_MAP_BYTES).and_then(|end| image.get(at..end));
        inside.map(<[u8]>::to_vec).ok_or_else(|| {
            problem::window(space, address, TENSOR_MAP_BYTES as u32, (0, image.len() as u64), false)
        })
    }

    /// `tensormap.replace`
    pub(super) fn replace_field(
        &mut self,
        warp: &Warp,
        issuer: Issuer,
        field: TensormapField,
        at: Place,
        index: Option<u32>,
        value: Slot,
    ) {
        let places = self.places(warp, at);
        for lane in lanes_of(issuer.lanes) {
            let value = lane_value(&warp.regs, value, lane);
            let change = |bytes: &mut [u8]| {
                let Some(mut map) = TensorMap::decode(bytes) else { return false };
                let done = set_field(&mut map, field, index.unwrap_or(0) as usize, value);
                bytes.copy_from_slice(&map.encode());
                done
            };
            let (space, address) = match at.space {
                warpwright_ptx::StateSpace::Generic => classify(places[lane]),
                warpwright_ptx::StateSpace::Global => (Space::Global, places[lane]),
                _ => (Space::Shared, places[lane]),
            };
            let need = Need { bytes: BYTES, align: TENSOR_MAP_ALIGN, write: true };
            let mut bytes = [0; TENSOR_MAP_BYTES];
            let done = if space == Space::Global {
                let Some((allocation, offset)) = self.global_range(warp, issuer, lane, address, need) else {
                    continue;
                };
                allocation.read(offset, &mut bytes);
                let done = change(&mut bytes);
                allocation.write(offset, &bytes);
                done
            } else {
                let at = (at.space, places[lane]);
                let Some(spot) = self.shared_spot(warp, issuer, lane, at, need) else { continue };
                self.on_rank(spot.rank, |cx| {
                    cx.block.shared.read(spot.address, &mut bytes);
                    let done = change(&mut bytes);
                    cx.block.shared.write(spot.address, &bytes);
                    done
                })
            };
            if !done {
                let problem = Problem {
                    kind: "tensor-map-invalid",
                    message:
                        "replaces a field of 128 bytes that are no tensor map, or by an impossible value"
                            .to_owned(),
                    help: "copy an encoded map there first",
                    address: (space, address),
                };
                self.bad_access(warp, issuer.pc, lane, &problem);
            }
        }
        self.progressed();
    }

    /// `tensormap.cp_fenceproxy`: the warp copies a map from shared to global memory.
    pub(super) fn copy_map(&mut self, warp: &Warp, issuer: Issuer, dst: Place, src: Place) {
        let (to, from) = (self.places(warp, dst), self.places(warp, src));
        let lane = issuer.lane() as usize;
        let need = Need { bytes: BYTES, align: BYTES, write: false };
        let Some(spot) = self.shared_spot(warp, issuer, lane, (src.space, from[lane]), need) else { return };
        let need = Need { write: true, ..need };
        let Some((allocation, offset)) = self.global_range(warp, issuer, lane, to[lane], need) else {
            return;
        };
        let mut bytes = [0; TENSOR_MAP_BYTES];
        self.on_rank(spot.rank, |cx| cx.block.shared.read(spot.address, &mut bytes));
        allocation.write(offset, &bytes);
        self.progressed();
    }
}

/// Changes one field; `false` if the value is none of the field's.
fn set_field(map: &mut TensorMap, field: TensormapField, index: usize, value: u64) -> bool {
    fn entry<T: Copy>(list: &mut [T], index: usize, value: T) -> bool {
        list.get_mut(index).map(|slot| *slot = value).is_some()
    }
    match field {
        TensormapField::GlobalAddress => map.base = value,
        TensormapField::Rank => {
            // The manual has no fields of the im2col mode.
            let TensorMode::Tiled { box_dims } = &mut map.mode else { return false };
            // The operand is the rank minus 1.
            let rank = value as usize + 1;
            if rank > 5 {
                return false;
            }
            map.dims.resize(rank, 1);
            map.strides.resize(rank - 1, 0);
            box_dims.resize(rank, 1);
            map.element_strides.resize(rank, 1);
        }
        TensormapField::BoxDim => {
            let TensorMode::Tiled { box_dims } = &mut map.mode else { return false };
            return entry(box_dims, index, value as u32);
        }
        TensormapField::GlobalDim => return entry(&mut map.dims, index, value & 0xFFFF_FFFF),
        TensormapField::GlobalStride => return entry(&mut map.strides, index, value),
        TensormapField::ElementStride => return entry(&mut map.element_strides, index, value as u32),
        TensormapField::ElementType => {
            let Some(element) = TensorElement::from_replace_code(value as u32) else { return false };
            map.element = element;
        }
        TensormapField::InterleaveLayout => match value {
            0 => map.interleave = TensorInterleave::None,
            1 => map.interleave = TensorInterleave::B16,
            2 => map.interleave = TensorInterleave::B32,
            _ => return false,
        },
        TensormapField::SwizzleMode => {
            let Some(swizzle) = TensorSwizzle::ALL.get(value as usize) else { return false };
            map.swizzle = *swizzle;
        }
        TensormapField::SwizzleAtomicity => return value == 0,
        TensormapField::FillMode => {
            map.fill = if value == 0 { TensorFill::Zero } else { TensorFill::Nan };
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_replaced_by_their_codes() {
        let mut map = TensorMap::dense(0, TensorElement::F16, &[64, 8], &[64, 8], TensorSwizzle::None);
        assert!(set_field(&mut map, TensormapField::GlobalAddress, 0, 0x4000));
        assert!(set_field(&mut map, TensormapField::ElementType, 0, 10));
        assert!(set_field(&mut map, TensormapField::SwizzleMode, 0, 3));
        assert!(set_field(&mut map, TensormapField::GlobalDim, 1, 100));
        assert!(set_field(&mut map, TensormapField::BoxDim, 1, 4));
        assert!(set_field(&mut map, TensormapField::GlobalStride, 0, 256));
        assert!(set_field(&mut map, TensormapField::Rank, 0, 2));
        let expected = (0x4000, TensorElement::BF16, TensorSwizzle::B128);
        assert_eq!((map.base, map.element, map.swizzle), expected);
        assert_eq!((map.dims, map.strides), (vec![64, 100, 1], vec![256, 0]));
        assert_eq!(map.mode, TensorMode::Tiled { box_dims: vec![64, 4, 1] });
        let mut map = TensorMap::dense(0, TensorElement::F16, &[64], &[64], TensorSwizzle::None);
        assert!(!set_field(&mut map, TensormapField::BoxDim, 1, 4));
        assert!(!set_field(&mut map, TensormapField::ElementType, 0, 99));
    }
}
