//! Barriers in shared memory that count arrivals and bytes (`mbarrier`), and copies of boxes of a tensor that they count
//! (sm_90 and later).
//!
//! A phase of a barrier ends when as many arrivals as it was made for and all bytes that were announced have come; then
//! the next begins. Phases have parities 0, 1, 0, 1...: who waits for parity `p` waits until the phase with that parity has
//! ended, so a wait for parity 1 passes at once on a fresh barrier.

use warpwright_ptx::tensor_map::{TENSOR_MAP_ALIGN, TENSOR_MAP_BYTES};
use warpwright_ptx::{
    Address, ArgValue, AsyncOrder, Inst, MbarrierPhase, Modifiers, Operand, Ordering, Param, RegKind,
    ScalarType, StateSpace, TensorCopy, TensorCopyMode, TensorMap, TensorTransfer,
};

use crate::args::{ArgInfo, Argument, DTypes, In, Out, parameter_name};
use crate::context::K;
use crate::lanes::Lanes;
use crate::mem::{Element, Ptr, Shared};
use crate::reg::{Pred, Reg, Source, U32, U64};

/// Bytes of a tensor map among a kernel's parameters, and their alignment.
const MAP_BYTES: u64 = TENSOR_MAP_BYTES as u64;
const MAP_ALIGN: u32 = TENSOR_MAP_ALIGN as u32;

/// An array of barriers in the block's shared memory; made by [`K::mbarriers`].
#[derive(Clone, Copy, Debug)]
pub struct Mbarriers<'k> {
    first: Ptr<'k, Shared, u64>,
}

/// A barrier in the block's shared memory.
#[derive(Clone, Copy, Debug)]
#[must_use = "it records instructions but does nothing"]
pub struct Mbarrier<'k> {
    at: Ptr<'k, Shared, u64>,
}

impl<'k> K<'k> {
    /// `count` barriers, not initialised.
    #[track_caller]
    pub fn mbarriers(self, count: u32) -> Mbarriers<'k> {
        Mbarriers { first: self.shared::<u64>(count) }
    }

    /// The barriers at `first`, not initialised: memory of 8 bytes each, of which the kernel makes no other use.
    pub fn mbarriers_at(self, first: Ptr<'k, Shared, u64>) -> Mbarriers<'k> {
        Mbarriers { first }
    }

    /// Makes initialised barriers known to copies; the thread that initialised them calls it, and a
    /// [`barrier`](Self::barrier) follows.
    #[track_caller]
    pub fn publish_mbarriers(self) {
        self.emit(Inst::MbarrierInitFence);
    }
}

impl<'k> Mbarriers<'k> {
    /// Barrier `index`.
    #[track_caller]
    pub fn at(self, index: impl Source<'k, u32>) -> Mbarrier<'k> {
        let k = self.first.k;
        Mbarrier { at: self.first.at(index.reg(k)) }
    }
}

impl<'k> Mbarriers<'k> {
    /// The barriers from `index` on.
    #[track_caller]
    pub fn from(self, index: impl Source<'k, u32>) -> Self {
        Self { first: self.at(index).at }
    }
}

impl<'k> Mbarrier<'k> {
    fn k(self) -> K<'k> {
        self.at.k
    }

    /// Initialises it for phases of `arrivals` arrivals.
    #[track_caller]
    pub fn init(self, arrivals: impl Source<'k, u32>) {
        let count = arrivals.operand();
        self.k().emit(Inst::MbarrierInit { space: StateSpace::Shared, addr: self.at.operand(), count });
    }

    /// Announces `bytes` bytes of copies for the present phase, and arrives.
    #[track_caller]
    pub fn arrive_expecting(self, bytes: impl Source<'k, u32>) {
        self.arrival(Some(bytes.operand()));
    }

    /// Arrives: what copies or products of the thread have read before may be overwritten by who waits.
    #[track_caller]
    pub fn arrive(self) {
        self.arrival(None);
    }

    /// Arrives at the same barrier of block `rank` of the cluster, which has begun and does not end before.
    #[track_caller]
    pub fn arrive_at(self, rank: impl Source<'k, u32>) {
        let k = self.k();
        k.on_behalf(|| arrival(k, StateSpace::SharedCluster, self.at.of_block(rank).operand(), None));
    }

    #[track_caller]
    fn arrival(self, expect_tx: Option<Operand>) {
        arrival(self.k(), StateSpace::Shared, self.at.operand(), expect_tx);
    }

    /// Waits until the phase of parity `parity` has ended; sees what the copies that it counts and threads of the block did
    /// before.
    #[track_caller]
    pub fn wait(self, parity: U32<'k>) {
        let k = self.k();
        k.on_behalf(|| {
            let tried = || {
                let done: Pred<'k> = Reg::from_id(k, k.rec().new_reg(ScalarType::Pred, RegKind::Value));
                k.emit(Inst::MbarrierWait {
                    try_wait: true,
                    ordering: Ordering::WEAK,
                    space: StateSpace::Shared,
                    dst: done.id(),
                    addr: self.at.operand(),
                    phase: MbarrierPhase::Parity(parity.as_operand()),
                    nanoseconds: None,
                });
                done
            };
            k.until(tried);
        });
    }
}

#[track_caller]
fn arrival(k: K<'_>, space: StateSpace, addr: Address, expect_tx: Option<Operand>) {
    k.emit(Inst::MbarrierArrive {
        drop: false,
        no_complete: false,
        expect_tx,
        ordering: Ordering::WEAK,
        space,
        dst: None,
        addr,
        count: None,
    });
}

impl<'k, E: Element> Ptr<'k, Shared, E> {
    /// Stores 1, 2 or 4 words of 32 bits at the same place in the shared memory of block `rank` of the cluster (`st.async`), where
    /// `done` counts their bytes: who waits for it sees them, and nothing else need be ordered. The address is aligned to
    /// the words together; there is a cluster of several blocks, and that block has begun and does not end before.
    #[track_caller]
    pub fn send(self, rank: impl Source<'k, u32>, words: &Lanes<'k, u32>, done: Mbarrier<'k>) {
        let rank = rank.reg(done.k());
        self.send_registers(rank, ScalarType::B32, words.iter().map(Reg::as_operand).collect(), done);
    }

    /// [`send`](Self::send) for registers of any type of 32 or 64 bits.
    #[track_caller]
    pub(crate) fn send_registers(
        self,
        rank: U32<'k>,
        ty: ScalarType,
        srcs: Vec<Operand>,
        done: Mbarrier<'k>,
    ) {
        let k = done.k();
        k.on_behalf(|| {
            k.emit(Inst::StAsync {
                space: StateSpace::SharedCluster,
                ty,
                addr: self.of_block(rank).operand(),
                srcs,
                order: AsyncOrder::Mbarrier(done.at.of_block(rank).operand()),
            });
        });
    }
}

/// A tensor map that the device encodes when a kernel is launched: as a field of a launch a map over a tensor of the
/// operation, in `build` a [`TensorMapParam`].
#[derive(Clone, Debug, PartialEq)]
pub struct TensorMapArg {
    value: ArgValue,
}

impl TensorMapArg {
    /// The map over the tensor that a pointer argument would be given; its base counts from there.
    pub fn over<E: Element>(tensor: &In<E>, map: TensorMap) -> Self {
        Self::bound(&tensor.value, map)
    }

    /// The same over a tensor that is written.
    pub fn over_output<E: Element>(tensor: &Out<E>, map: TensorMap) -> Self {
        Self::bound(&tensor.value, map)
    }

    fn bound(tensor: &ArgValue, mut map: TensorMap) -> Self {
        let slot = match tensor.clone() {
            ArgValue::Slot { slot, offset } => {
                map.base = map.base.wrapping_add(offset);
                Some(slot)
            }
            ArgValue::Address(address) => {
                map.base = map.base.wrapping_add(address);
                None
            }
            value => return Self { value },
        };
        Self { value: ArgValue::TensorMap { map: Box::new(map), slot } }
    }
}

impl Argument for TensorMapArg {
    type Param<'k> = TensorMapParam<'k>;

    fn describe(path: &str, all: &mut Vec<ArgInfo>) {
        all.push(ArgInfo { path: path.to_owned(), output: false, dynamic: false });
    }

    fn pass(&self, values: &mut Vec<ArgValue>) {
        values.push(self.value.clone());
    }

    #[track_caller]
    fn declare<'k>(k: K<'k>, path: &str, _: &DTypes) -> TensorMapParam<'k> {
        let mut param = Param::scalar(parameter_name(path), ScalarType::B8);
        (param.array, param.align) = (Some(MAP_BYTES), MAP_ALIGN);
        let symbol = k.rec().new_param(param);
        let (of_params, generic) = (k.fresh::<u64>(), k.fresh::<u64>());
        let src = Operand::Symbol(symbol, 0);
        k.emit(Inst::Mov { ty: ScalarType::U64, dst: of_params.id(), src });
        k.emit(Inst::Cvta {
            to_space: false,
            space: StateSpace::Param,
            ty: ScalarType::U64,
            dst: generic.id(),
            src: of_params.as_operand(),
        });
        TensorMapParam { map: generic }
    }
}

/// A tensor in global memory of which one instruction copies a whole box; the map of the launch says how large and how
/// its 16-byte pieces are placed.
#[derive(Clone, Copy, Debug)]
#[must_use = "it records instructions but copies nothing"]
pub struct TensorMapParam<'k> {
    map: U64<'k>,
}

impl<'k> TensorMapParam<'k> {
    /// Starts the copy of the box at `coords`, innermost first, to the shared memory at `to`; `done` counts its bytes. What
    /// lies outside of the tensor becomes zero and counts too. For one thread.
    #[track_caller]
    pub fn copy(self, to: U32<'k>, coords: &[U32<'k>], done: Mbarrier<'k>) {
        self.load(to, coords, done, None);
    }

    /// The same to that place of each block of the cluster whose bit is set in `blocks`, where the barrier at the place of `done` counts
    /// the bytes. These blocks have begun and do not end before.
    #[track_caller]
    pub fn copy_to_blocks(self, blocks: u32, to: U32<'k>, coords: &[U32<'k>], done: Mbarrier<'k>) {
        self.load(to, coords, done, Some(Operand::int(i64::from(blocks))));
    }

    /// Starts the copy of the pixels from `coords` on (C, W, (H, D,) N, the bits of signed integers) to the shared memory at `to`, by a
    /// map in im2col mode: as many channels and pixels as the map says, the pixels moved by `offsets` (W, (H, D), at most 65535, 255 or 31 for
    /// one, two or three). The first pixel lies in the bounding box of the map. `done` counts all bytes; what lies outside of the tensor
    /// becomes zero and counts too. For one thread.
    #[track_caller]
    pub fn copy_im2col(self, to: U32<'k>, coords: &[U32<'k>], offsets: &[U32<'k>], done: Mbarrier<'k>) {
        let k = self.map.k();
        k.on_behalf(|| self.load_im2col(to, coords, &Self::im2col_offsets(offsets), done));
    }

    /// Offsets as instructions take them: 16 bits.
    #[track_caller]
    pub(crate) fn im2col_offsets(offsets: &[U32<'k>]) -> Vec<Operand> {
        let narrow = |offset: &U32<'k>| offset.cvt::<u16>(Modifiers::NONE).as_operand();
        offsets.iter().map(narrow).collect()
    }

    #[track_caller]
    pub(crate) fn load_im2col(
        self,
        to: U32<'k>,
        coords: &[U32<'k>],
        offsets: &[Operand],
        done: Mbarrier<'k>,
    ) {
        let transfer = Self::into_shared(to, done, None);
        self.transfer(coords, Some(offsets), transfer);
    }

    #[track_caller]
    fn load(self, to: U32<'k>, coords: &[U32<'k>], done: Mbarrier<'k>, multicast: Option<Operand>) {
        self.transfer(coords, None, Self::into_shared(to, done, multicast));
    }

    fn into_shared(to: U32<'k>, done: Mbarrier<'k>, multicast: Option<Operand>) -> TensorTransfer {
        TensorTransfer::Load {
            dst_space: StateSpace::SharedCluster,
            dst: Address::reg(to.id(), 0),
            barrier: done.at.operand(),
            multicast,
            cta_group: None,
        }
    }

    /// Starts the copy of the shared memory at `from` to the box at `coords`, innermost first, without what lies outside of the tensor.
    /// [`K::commit_stores`] and [`K::wait_stores`] follow. The memory was written before a
    /// [`fence_shared_copies`](K::fence_shared_copies) of those who wrote it and a barrier. For one thread.
    #[track_caller]
    pub fn store(self, from: U32<'k>, coords: &[U32<'k>]) {
        self.transfer(coords, None, TensorTransfer::Store { src: Address::reg(from.id(), 0) });
    }

    /// A copy in tiled mode, or with offsets in im2col mode.
    #[track_caller]
    fn transfer(self, coords: &[U32<'k>], offsets: Option<&[Operand]>, transfer: TensorTransfer) {
        let k = self.map.k();
        k.on_behalf(|| {
            k.emit(Inst::TensorCopy(Box::new(TensorCopy {
                transfer,
                dims: u8::try_from(coords.len()).unwrap_or(u8::MAX),
                mode: if offsets.is_some() { TensorCopyMode::Im2col } else { TensorCopyMode::Tile },
                map: Address::reg(self.map.id(), 0),
                coords: coords.iter().map(|c| c.as_operand()).collect(),
                offsets: offsets.map(<[Operand]>::to_vec).unwrap_or_default(),
                policy: None,
            })));
        });
    }
}

impl<'k> K<'k> {
    /// Makes the stores of boxes that the thread started since the last commit a group, empty or not.
    #[track_caller]
    pub fn commit_stores(self) {
        self.emit(Inst::BulkCommit);
    }

    /// Waits until at most the last `pending` groups of stores of the thread still have to read their shared memory.
    #[track_caller]
    pub fn wait_stores(self, pending: u32) {
        self.emit(Inst::BulkWait { read: true, pending });
    }
}
