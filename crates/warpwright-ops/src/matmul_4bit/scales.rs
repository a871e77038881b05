//! Scales and zero points of groups, as kernels read them.

use warpwright_dsl::prelude::*;
use warpwright_dsl::{Halves, WarpTable};

use super::format::{ScaleFormat, WeightFormat};
use crate::quantize::nested::BLOCK;
use crate::quantize::tables::dynamic_map;

kernel_args! {
    /// The tensors of scales; of some formats there are not all. `nested_absmax` is what scales that are codes are multiplied with: one factor for
    /// every 256 nested ones, or one for all of e4m3; `offset` of indexed groups is the one of each column.
    pub(super) struct ScaleArgs => ScaleParams {
        scales: In<Elem>, zero_points: In<u8>, nested_absmax: In<f32>, offset: In<f32>
    }
}

/// How the groups of a kernel's weight are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Groups {
    pub(super) format: WeightFormat,
    pub(super) scale: ScaleFormat,
    /// Whether the group of each column is given; otherwise neighbours share one.
    pub(super) indexed: bool,
}

/// The scale of a group as it was loaded.
#[derive(Clone, Debug)]
pub(super) struct Loaded<'k> {
    /// A float, or a byte.
    words: Vec<U32<'k>>,
    /// The maximum of the block of a nested scale.
    absmax: Vec<F32<'k>>,
}
warpwright_dsl::carry!(Loaded { words, absmax });

/// The tensors and the table that scales are decoded with.
#[derive(Clone, Copy)]
pub(super) struct Decoder<'k> {
    groups: Groups,
    params: ScaleParams<'k>,
    map: Option<Map<'k>>,
    offset: Option<F32<'k>>,
    tensor_scale: Option<F32<'k>>,
}

/// The dynamic map of nested scales.
#[derive(Clone, Copy)]
enum Map<'k> {
    Global(Ptr<'k, Read, f32>),
    Shared(Ptr<'k, Shared, f32>),
}

/// Elements that share an e4m3 scale.
const E4M3_GROUP: u32 = 16;
/// Entries of the dynamic map.
pub(super) const MAP_LEN: u32 = 256;

impl Groups {
    /// Its part of the name of a kernel.
    pub(super) fn name(self) -> String {
        let indexed = if self.indexed { "_indexed" } else { "" };
        format!("{}_{}{indexed}", self.format.name(), self.scale.name())
    }

    /// The type of `scales` among the arguments of a kernel, whose part they are.
    pub(super) fn dtypes(self, dtypes: DTypes) -> DTypes {
        let scales = match self.scale {
            ScaleFormat::Float(dtype) => dtype,
            _ => DType::F32,
        };
        dtypes.with("scale.scales", scales)
    }

    /// The name of a kernel that multiplies as it reads the weight: in tiles of `config`, with a scale for each slice or one that several
    /// share, with a bias, or sums of parts.
    pub(super) fn product_name(self, dtype: DType, config: &str, [fine, bias, parts]: [bool; 3]) -> String {
        let when = |holds: bool, text: &'static str| if holds { text } else { "" };
        let (shared, bias, parts) = (when(!fine, "_shared"), when(bias, "_bias"), when(parts, "_parts"));
        format!("matmul_4bit_{}_{dtype}_{config}{shared}{bias}{parts}", self.name())
    }

    pub(super) fn is_nested(self) -> bool {
        self.scale == ScaleFormat::Nested
    }

    /// Whether scales multiply numbers in the type of `x`, which is exact of these, and not sums: a slice has one for every 16 elements.
    pub(super) fn scales_numbers(self) -> bool {
        self.scale == ScaleFormat::E4m3
    }

    /// The factor of all sums of numbers that have been multiplied by their scales.
    pub(super) fn tensor_scale(self, params: ScaleParams<'_>) -> Option<F32<'_>> {
        self.scales_numbers().then(|| params.nested_absmax.get())
    }

    /// Reads the map from global memory. Scales are those of whole numbers.
    pub(super) fn decoder<'k>(self, k: K<'k>, params: ScaleParams<'k>) -> Decoder<'k> {
        let map = self.is_nested().then(|| Map::Global(global_map(k)));
        let offset = self.is_nested().then(|| params.offset.get());
        Decoder { groups: self, params, map, offset, tensor_scale: self.tensor_scale(params) }
    }

    /// Reads the map from where [`fill_map`] has put it. Scales lack the [`tensor_scale`](Self::tensor_scale).
    pub(super) fn decoder_with<'k>(
        self,
        params: ScaleParams<'k>,
        map: Option<Ptr<'k, Shared, f32>>,
    ) -> Decoder<'k> {
        let map = map.map(Map::Shared);
        let offset = self.is_nested().then(|| params.offset.get());
        Decoder { groups: self, params, map, offset, tensor_scale: None }
    }
}

/// The number of each code; the second half of the lanes has what the first has.
pub(super) fn numbers<'k>(k: K<'k>, format: WeightFormat) -> WarpTable<'k, f32> {
    let table = format.table();
    k.warp_table_f32(&std::array::from_fn(|lane| table[lane % table.len()]))
}

/// How far a code is shifted in its byte: that of an element with an odd number, or of one with an even one.
pub(super) fn shift_of(format: WeightFormat, odd: U32<'_>) -> U32<'_> {
    (if format.is_flat() { odd ^ 1 } else { odd }) << 2
}

fn global_map(k: K<'_>) -> Ptr<'_, Read, f32> {
    k.constant_table::<f32>(&dynamic_map().map(f32::to_bits))
}

/// Copies the dynamic map to shared memory.
pub(super) fn fill_map<'k>(k: K<'k>, to: Ptr<'k, Shared, f32>) {
    let from = global_map(k);
    k.for_each(k.range(k.thread_idx(), MAP_LEN, k.block_threads()), |i| to.at(i).set(from.at(i).get()));
}

impl<'k> Decoder<'k> {
    /// The group of element `at` of the row that begins at `row`, as scales count them. Of indexed groups `divisor` is the last of a row, which
    /// those that are none stand for.
    pub(super) fn group_of(&self, row: U64<'k>, at: U64<'k>, divisor: U64<'k>, shifts: bool) -> U32<'k> {
        if self.groups.indexed {
            let group = self.params.offset.cast::<u32>().at(at).get().min(divisor.to_u32());
            return (row + group.to_u64()).to_u32();
        }
        group_of(row + at, divisor, shifts)
    }

    /// Loads what there is of the group `after` others behind `group`.
    pub(super) fn load(&self, group: U32<'k>, after: u32) -> Loaded<'k> {
        let (p, behind) = (self.params, u64::from(after));
        let byte = |of: Ptr<'k, Read, u8>| of.at(group).at(behind).get();
        let mut loaded = Loaded { words: Vec::new(), absmax: Vec::new() };
        match self.groups.scale {
            ScaleFormat::Float(DType::F32) => loaded.absmax.push(p.scales.at(group).at(behind).get()),
            // As it lies there: a conversion would wait for it.
            ScaleFormat::Float(_) => loaded.words.push(p.scales.cast::<u16>().at(group).at(behind).get()),
            ScaleFormat::Nested => {
                loaded.words.push(byte(p.scales.cast()));
                loaded.absmax.push(p.nested_absmax.at((group + after) / BLOCK as u32).get());
            }
            ScaleFormat::E8m0 | ScaleFormat::E4m3 => loaded.words.push(byte(p.scales.cast())),
        }
        if self.groups.format.has_zero_points() {
            loaded.words.push(byte(p.zero_points));
        }
        loaded
    }

    /// Loads what there is of the group of slice `slice` behind `first`, as scales count slices; `shift` is the logarithm of how many share
    /// one, or nothing where each has its own.
    pub(super) fn load_slice(&self, first: U32<'k>, slice: u32, shift: Option<U32<'k>>) -> Loaded<'k> {
        match shift {
            None => self.load(first, slice),
            Some(shift) => self.load((first + slice) >> shift, 0),
        }
    }

    /// Loads what there is of the groups of `count` slices of `len` elements from `first` on, a multiple of `count`; `shift` as for
    /// [`load_slice`](Self::load_slice). Slices with scales of their own are loaded in vectors.
    pub(super) fn load_slices(
        &self,
        first: U32<'k>,
        (count, len): (u32, u32),
        shift: Option<U32<'k>>,
    ) -> Vec<Loaded<'k>> {
        if self.groups.scale == ScaleFormat::E4m3 {
            let whole = len / E4M3_GROUP == 4;
            return if whole {
                self.load_e4m3_vector(first)
            } else {
                (0..count).map(|slice| self.load_e4m3(first, slice, len)).collect()
            };
        }
        if shift.is_some() {
            return (0..count).map(|slice| self.load_slice(first, slice, shift)).collect();
        }
        let p = self.params;
        let bytes = |of: Ptr<'k, Read, u8>| -> Vec<U32<'k>> {
            let words = of.at(first).cast::<u32>().load::<u32>(count / 4);
            words.into_iter().flat_map(|word| (0..4u32).map(move |i| word.permute(0, 0x4440 | i))).collect()
        };
        let mut all = vec![Loaded { words: Vec::new(), absmax: Vec::new() }; count as usize];
        let mut put =
            |words: Vec<U32<'k>>| all.iter_mut().zip(words).for_each(|(one, word)| one.words.push(word));
        match self.groups.scale {
            ScaleFormat::Float(DType::F32) => {
                let scales =
                    (0..count / 4).flat_map(|i| p.scales.at(first).at(u64::from(4 * i)).load::<f32>(4));
                let scales: Vec<F32<'k>> = scales.collect();
                all.iter_mut().zip(scales).for_each(|(one, scale)| one.absmax.push(scale));
            }
            ScaleFormat::Float(_) => {
                let words = p.scales.cast::<u16>().at(first).cast::<u32>().load::<u32>(count / 2);
                put(words.into_iter().flat_map(|pair| [pair & 0xffff, pair >> 16]).collect());
            }
            ScaleFormat::Nested => {
                put(bytes(p.scales.cast()));
                let absmax = p.nested_absmax.at(first / BLOCK as u32).get();
                all.iter_mut().for_each(|one| one.absmax.push(absmax));
            }
            // Two of a slice.
            ScaleFormat::E8m0 if len == 64 => {
                let words = p.scales.cast::<u16>().at(first).cast::<u32>().load::<u32>(count / 2);
                put(words.into_iter().flat_map(|pair| [pair, pair >> 16]).collect());
            }
            ScaleFormat::E8m0 | ScaleFormat::E4m3 => put(bytes(p.scales.cast())),
        }
        if self.groups.format.has_zero_points() {
            let words = bytes(p.zero_points);
            all.iter_mut().zip(words).for_each(|(one, word)| one.words.push(word));
        }
        all
    }

    /// Loads the e4m3 scales of slice `slice` of `len` elements behind `first`, of which a word has four or two.
    pub(super) fn load_e4m3(&self, first: U32<'k>, slice: u32, len: u32) -> Loaded<'k> {
        let (scales, behind) = (self.params.scales, u64::from(slice));
        let word = match len / E4M3_GROUP {
            4 => scales.cast::<u32>().at(first).at(behind).get(),
            _ => scales.cast::<u16>().at(first).at(behind).get(),
        };
        Loaded { words: vec![word], absmax: Vec::new() }
    }

    /// The same of four slices of 64 elements from `first` on, where that is a multiple of four.
    pub(super) fn load_e4m3_vector(&self, first: U32<'k>) -> Vec<Loaded<'k>> {
        let words = self.params.scales.cast::<u32>().at(first).load::<u32>(4);
        words.into_iter().map(|word| Loaded { words: vec![word], absmax: Vec::new() }).collect()
    }

    /// One of the scales of a slice that were loaded, in both halves of a word of `dtype`. Of e4m3 ones it is the byte that the last two digits
    /// of `selector` name, whose others are those of zeros; of e8m0 ones, which are of bf16 alone, that of the last digit.
    pub(super) fn halves(
        &self,
        loaded: &Loaded<'k>,
        selector: impl Source<'k, u32>,
        dtype: DType,
    ) -> Halves<'k> {
        if self.groups.scale == ScaleFormat::E8m0 {
            // The exponent of bf16 is that of the scale, which has no zero and no infinity.
            let exponent = loaded.words[0].permute(0, selector);
            let power = exponent.eq(0).select(0x0040_0040, exponent * 0x0080_0080);
            return Halves::from_word(exponent.eq(255).select(0x7fc0_7fc0, power), dtype);
        }
        let pair = Halves::from_e4m3(loaded.words[0].permute(0, selector));
        if dtype == DType::F16 {
            return pair;
        }
        let [scale, _] = pair.widen();
        Halves::from_word(scale.pack_with(scale, dtype), dtype)
    }

    /// All four, each in both halves of a word of `dtype`.
    pub(super) fn all_halves(&self, loaded: &Loaded<'k>, dtype: DType) -> Vec<Halves<'k>> {
        if dtype == DType::F16 {
            return [0x4400, 0x4411, 0x4422, 0x4433].map(|byte| self.halves(loaded, byte, dtype)).into();
        }
        let pairs = [loaded.words[0], loaded.words[0] >> 16].map(|bytes| Halves::from_e4m3(bytes).widen());
        let scales = pairs.into_iter().flatten();
        scales.map(|scale| Halves::from_word(scale.pack_with(scale, dtype), dtype)).collect()
    }

    /// The scale.
    pub(super) fn scale(&self, k: K<'k>, loaded: &Loaded<'k>) -> F32<'k> {
        match self.groups.scale {
            ScaleFormat::Float(DType::F32) => loaded.absmax[0],
            ScaleFormat::Float(DType::BF16) => F32::from_bits(loaded.words[0] << 16),
            ScaleFormat::Float(dtype) => Halves::from_word(loaded.words[0], dtype).widen()[0],
            ScaleFormat::Nested => {
                let code = loaded.words[0];
                let value = match self.map {
                    Some(Map::Global(map)) => map.at(code).get(),
                    Some(Map::Shared(map)) => map.at(code).get(),
                    None => k.lit(0.0),
                };
                // Two roundings, as the format has it.
                let scale = value * loaded.absmax[0];
                self.offset.map_or(scale, |offset| scale + offset)
            }
            ScaleFormat::E8m0 => {
                let exponent = loaded.words[0];
                let bits = exponent.eq(0).select(k.lit(1u32 << 22), exponent << 23);
                F32::from_bits(exponent.eq(255).select(k.lit(f32::NAN.to_bits()), bits))
            }
            ScaleFormat::E4m3 => {
                let [scale, _] = Halves::from_e4m3(loaded.words[0]).widen();
                self.tensor_scale.map_or(scale, |factor| scale * factor)
            }
        }
    }

    /// The zero point, if the format has one.
    pub(super) fn zero_point(&self, loaded: &Loaded<'k>) -> Option<F32<'k>> {
        let zero = loaded.words.last().filter(|_| self.groups.format.has_zero_points());
        zero.map(|zero| zero.to_f32())
    }
}

/// The group of an element: a size of groups that is a power of two is given as its logarithm.
fn group_of<'k>(element: U64<'k>, divisor: U64<'k>, shifts: bool) -> U32<'k> {
    (if shifts { element >> divisor.to_u32() } else { element / divisor }).to_u32()
}
