//! Instructions of the tensor-core, asynchronous and cluster families, one of every form.

use warpwright_ptx::ScalarType::{self, *};
use warpwright_ptx::isa::{self, MmaForm, Sparse};
use warpwright_ptx::*;

use crate::assembler::register;
use crate::forms::operand;

fn at(n: usize) -> Address {
    Address::reg(register(B64, n), 0)
}

/// Registers of a fragment; there are only so many.
fn fragment(ty: MatrixType, n: usize) -> Vec<Reg> {
    let ty = if ty.register_bits() == 64 { B64 } else { B32 };
    (0..n).map(|i| register(ty, i % 8)).collect()
}

fn sources(ty: MatrixType, n: usize) -> Vec<Operand> {
    fragment(ty, n).into_iter().map(Operand::Reg).collect()
}

/// An `mma` with the registers that its shape and types call for.
pub(crate) fn mma(
    shape: MmaShape,
    [d_ty, a_ty, b_ty, c_ty]: [MatrixType; 4],
    product: Option<BitProduct>,
    kind: Option<MmaKind>,
    scale: Option<(Option<ScaleVector>, ScaleType)>,
    sparsity: Option<Sparsity>,
) -> Inst {
    let half = operand(B16, 0);
    let scales = Scale { data: operand(B32, 7), byte: half, thread: half };
    let mut m = Mma {
        shape,
        a_layout: MatrixLayout::Row,
        b_layout: MatrixLayout::Col,
        d_ty,
        a_ty,
        b_ty,
        c_ty,
        rounding: None,
        satfinite: false,
        product,
        kind,
        sparsity,
        scale: scale.map(|(vector, ty)| BlockScale { vector, ty, a: scales, b: scales }),
        d: Vec::new(),
        a: Vec::new(),
        b: Vec::new(),
        c: Vec::new(),
    };
    let [d, a, b, c] = isa::mma_registers(&m);
    (m.d, m.a, m.b, m.c) = (fragment(d_ty, d), sources(a_ty, a), sources(b_ty, b), sources(c_ty, c));
    Inst::Mma(Box::new(m))
}

fn mma_forms(form: &MmaForm) -> Vec<Inst> {
    let extra = &form.extra;
    let selector = Sparsity { ordered: false, metadata: operand(B32, 6), selector: 0 };
    let sparse: Vec<Option<Sparsity>> = match extra.sparse {
        Sparse::No => vec![None],
        Sparse::Yes => vec![Some(selector), Some(Sparsity { ordered: true, ..selector })],
        Sparse::Ordered => vec![Some(Sparsity { ordered: true, ..selector })],
    };
    let scales: Vec<_> =
        if extra.scales.is_empty() { vec![None] } else { extra.scales.iter().copied().map(Some).collect() };
    let mut all = Vec::new();
    for shape in form.shapes {
        for (a, b) in form.types.iter().flat_map(|a| form.types.iter().map(move |b| (*a, *b))) {
            if extra.same && a != b {
                continue;
            }
            for (d, c) in form.accumulators {
                for (scale, sparsity) in scales.iter().flat_map(|s| sparse.iter().map(move |p| (*s, *p))) {
                    all.push(mma(*shape, [*d, a, b, *c], extra.product, extra.kind, scale, sparsity));
                }
            }
        }
    }
    let mut variants = Vec::new();
    for inst in &all {
        let Inst::Mma(m) = inst else { continue };
        if extra.rounding {
            variants.push(Inst::Mma(Box::new(Mma { rounding: Some(Rounding::Rz), ..(**m).clone() })));
        }
        if extra.satfinite {
            variants.push(Inst::Mma(Box::new(Mma { satfinite: true, ..(**m).clone() })));
        }
        if extra.any_layout {
            let swapped = Mma { a_layout: MatrixLayout::Col, b_layout: MatrixLayout::Row, ..(**m).clone() };
            variants.push(Inst::Mma(Box::new(swapped)));
        }
    }
    all.extend(variants);
    all
}

/// A `wgmma` with the registers that its shape and types call for.
pub(crate) fn wgmma(
    [d_ty, a_ty, b_ty]: [MatrixType; 3],
    (n, k): (u16, u16),
    in_registers: bool,
    sparse: bool,
) -> Inst {
    let sparsity = sparse.then(|| Sparsity { ordered: false, metadata: operand(B32, 6), selector: 0 });
    let descriptor = operand(B64, 1);
    let mut m = Wgmma {
        n,
        k,
        d_ty,
        a_ty,
        b_ty,
        satfinite: false,
        sparsity,
        d: Vec::new(),
        a: WgmmaSource::Descriptor(descriptor),
        b: operand(B64, 2),
        accumulate: Accumulate::If(register(Pred, 1)),
        negate_a: true,
        negate_b: false,
        transpose_a: false,
        transpose_b: false,
    };
    let (d, a) = isa::wgmma_registers(&m);
    m.d = fragment(d_ty, d);
    if in_registers {
        m.a = WgmmaSource::Registers(sources(a_ty, a));
    }
    m.transpose_b = m.has_transposes();
    if !m.has_scales() {
        m.negate_a = false;
    }
    Inst::Wgmma(Box::new(m))
}

fn tensor() -> Vec<Inst> {
    let mut all: Vec<Inst> = isa::MMA.iter().flat_map(mma_forms).collect();
    for (types, results, k) in isa::WGMMA {
        let integer = results == &[MatrixType::S32];
        for (a, b) in types.iter().flat_map(|a| types.iter().map(move |b| (*a, *b))) {
            for d in *results {
                for n in [8, 24, 256] {
                    all.push(wgmma([*d, a, b], (n, *k), n == 24, false));
                }
                if a != MatrixType::B1 && (!integer || a == b) {
                    all.push(wgmma([*d, a, b], (16, 2 * k), false, true));
                }
            }
        }
    }
    all.extend(matrices());
    all.extend(every_wmma().into_iter().filter(|i| isa::form(i).is_ok()));
    all.extend([
        Inst::MovMatrix { dst: register(B32, 0), a: operand(B32, 1) },
        Inst::WgmmaFence,
        Inst::WgmmaCommit,
        Inst::WgmmaWait { pending: 3 },
        Inst::SetMaxNreg { increase: true, count: 240 },
        Inst::SetMaxNreg { increase: false, count: 24 },
    ]);
    all
}

/// Loads and stores of every shape, also with numbers of pieces that there are not.
fn tensor_memory() -> Vec<Tcgen05> {
    let mut all = Vec::new();
    for (shape, packed) in Tcgen05Shape::ALL.iter().flat_map(|s| [false, true].map(|p| (*s, p))) {
        for count in [1, 2, 4, 8, 16, 32, 64, 128] {
            let access = Tcgen05Access { shape, count, packed, split: 0 };
            let access =
                if shape == Tcgen05Shape::L16B32X2 { Tcgen05Access { split: 8, ..access } } else { access };
            let registers = access.registers().min(128);
            let memory = Address::reg(register(B32, 7), 4);
            let dsts = fragment(MatrixType::F32, registers);
            let srcs = sources(MatrixType::F32, registers);
            all.extend([Tcgen05::Load { access, dsts, memory }, Tcgen05::Store { access, memory, srcs }]);
        }
    }
    all
}

/// Products of every kind, with every operand and modifier that some kind has.
fn tensor_products() -> Vec<Tcgen05> {
    let memory = |n| Address::reg(register(B32, n), 0);
    let mut all = Vec::new();
    for (kind, pair) in Tcgen05Kind::ALL.iter().flat_map(|k| [false, true].map(|p| (*k, p))) {
        let plain = Tcgen05Mma {
            pair,
            kind,
            scales: None,
            shift: false,
            collector: None,
            d: memory(0),
            a: Tcgen05Source::Descriptor(operand(B64, 1)),
            b: operand(B64, 2),
            descriptor: operand(B32, 1),
            disabled: Vec::new(),
            accumulate: register(Pred, 1),
            scale_d: None,
        };
        let sizes = [
            None,
            Some(Tcgen05ScaleSize::Vector(ScaleVector::X1)),
            Some(Tcgen05ScaleSize::Vector(ScaleVector::X2)),
            Some(Tcgen05ScaleSize::Vector(ScaleVector::X4)),
            Some(Tcgen05ScaleSize::Block(Tcgen05Block::B16)),
            Some(Tcgen05ScaleSize::Block(Tcgen05Block::B32)),
        ];
        if kind.is_scaled() {
            let scales = |size| Some(Tcgen05Scales { size, a: memory(3), b: memory(4) });
            all.extend(sizes.map(|size| Tcgen05Mma { scales: scales(size), ..plain.clone() }));
            continue;
        }
        let in_memory = Tcgen05Mma { a: Tcgen05Source::Memory(memory(2)), ..plain.clone() };
        for collector in Tcgen05Collector::ALL.iter().copied().map(Some) {
            all.push(Tcgen05Mma { collector, ..plain.clone() });
            all.push(Tcgen05Mma { collector, shift: true, ..in_memory.clone() });
        }
        for masks in [4, 8] {
            all.push(Tcgen05Mma { disabled: sources(MatrixType::F32, masks), ..plain.clone() });
        }
        all.push(Tcgen05Mma { scale_d: Some(3), ..plain.clone() });
        all.push(Tcgen05Mma { shift: true, ..in_memory.clone() });
        all.extend([plain, in_memory]);
    }
    all.into_iter().map(Tcgen05::Mma).collect()
}

fn tcgen05() -> Vec<Inst> {
    let memory = Address::reg(register(B32, 7), 0);
    let shared = Address::reg(register(B32, 6), 0);
    let mut all = [tensor_memory(), tensor_products()].concat();
    for pair in [false, true] {
        all.extend([
            Tcgen05::Alloc { pair, space: StateSpace::Shared, addr: shared, columns: Operand::int(64) },
            Tcgen05::Alloc { pair, space: StateSpace::Generic, addr: at(1), columns: operand(B32, 1) },
            Tcgen05::Dealloc { pair, memory: operand(B32, 7), columns: Operand::int(512) },
            Tcgen05::Relinquish { pair },
            Tcgen05::Shift { pair, memory },
        ]);
        let generic = Tcgen05::Commit { pair, space: StateSpace::Generic, addr: at(1), multicast: None };
        all.push(generic);
        for multicast in [None, Some(operand(B16, 1))] {
            all.push(Tcgen05::Commit { pair, space: StateSpace::SharedCluster, addr: shared, multicast });
        }
        for shape in Tcgen05CopyShape::ALL {
            for multicast in std::iter::once(None).chain(Tcgen05Multicast::ALL.iter().copied().map(Some)) {
                for packed in [None, Some(Tcgen05Packed::B6), Some(Tcgen05Packed::B4)] {
                    let descriptor = operand(B64, 2);
                    all.push(Tcgen05::Copy { pair, shape: *shape, multicast, packed, memory, descriptor });
                }
            }
        }
    }
    all.extend([false, true].map(|stores| Tcgen05::Wait { stores }));
    all.extend([false, true].map(|after| Tcgen05::Fence { after }));
    all.into_iter().map(|t| Inst::Tcgen05(Box::new(t))).collect()
}

/// Every combination of shape, types and layouts of `wmma`.
pub(crate) fn every_wmma() -> Vec<Inst> {
    use MatrixType::{B1, BF16, F16, F32, F64, S4, S8, S32, TF32, U4, U8};
    let types = [F16, BF16, TF32, F32, F64, S8, U8, S4, U4, B1, S32];
    let mut all = Vec::new();
    for (shape, ty) in WmmaShape::ALL.iter().flat_map(|s| types.iter().map(move |t| (*s, *t))) {
        for (matrix, layout) in
            WmmaMatrix::ALL.iter().flat_map(|m| MatrixLayout::ALL.iter().map(move |l| (*m, *l)))
        {
            let spaces = [StateSpace::Generic, StateSpace::Shared, StateSpace::Global, StateSpace::Local];
            for (space, stride) in spaces.into_iter().zip([None, Some(operand(U32, 0)), None, None]) {
                let tile = Box::new(WmmaTile { matrix, layout, shape, space, ty, addr: at(7), stride });
                let registers = isa::wmma_registers(matrix, shape, ty);
                if registers == 0 {
                    continue;
                }
                all.push(if matrix == WmmaMatrix::D {
                    Inst::WmmaStore { tile, srcs: sources(ty, registers) }
                } else {
                    Inst::WmmaLoad { tile, dsts: fragment(ty, registers) }
                });
            }
        }
        for (a_layout, b_layout) in
            MatrixLayout::ALL.iter().flat_map(|a| MatrixLayout::ALL.iter().map(move |b| (*a, *b)))
        {
            let extras = [
                (None, false, None),
                (Some(Rounding::Rz), false, None),
                (None, true, None),
                (None, false, Some(BitProduct::Xor)),
                (None, false, Some(BitProduct::And)),
            ];
            for (d_ty, c_ty) in
                [(F16, F16), (F16, F32), (F32, F16), (F32, F32), (S32, S32), (F64, F64), (S32, F32)]
            {
                // What is written besides has nothing to do with layouts.
                let usual = (a_layout, b_layout) == (MatrixLayout::Row, MatrixLayout::Col);
                let empty = |matrix, ty| isa::wmma_registers(matrix, shape, ty) == 0;
                if empty(WmmaMatrix::A, ty) || empty(WmmaMatrix::B, ty) {
                    continue;
                }
                for (rounding, satfinite, product) in &extras[..if usual { extras.len() } else { 1 }] {
                    let registers = |matrix, ty| isa::wmma_registers(matrix, shape, ty);
                    all.push(Inst::Wmma(Box::new(Wmma {
                        shape,
                        a_layout,
                        b_layout,
                        d_ty,
                        a_ty: ty,
                        b_ty: ty,
                        c_ty,
                        rounding: *rounding,
                        satfinite: *satfinite,
                        product: *product,
                        d: fragment(d_ty, registers(WmmaMatrix::D, d_ty)),
                        a: sources(ty, registers(WmmaMatrix::A, ty)),
                        b: sources(ty, registers(WmmaMatrix::B, ty)),
                        c: sources(c_ty, registers(WmmaMatrix::C, c_ty)),
                    })));
                }
            }
        }
    }
    all
}

/// Every `ldmatrix` and `stmatrix` that the table has.
fn matrices() -> Vec<Inst> {
    every_matrix().into_iter().filter(|i| isa::form(i).is_ok()).collect()
}

/// Every combination of shape, element, number and transposition.
pub(crate) fn every_matrix() -> Vec<Inst> {
    let mut all = Vec::new();
    for (shape, element) in
        MatrixShape::ALL.iter().flat_map(|s| MatrixElement::ALL.iter().map(move |e| (*s, *e)))
    {
        for (count, transposed) in [1, 2, 4].into_iter().flat_map(|c| [(c, false), (c, true)]) {
            let tiles = MatrixTiles { shape, count, transposed, element };
            let registers = fragment(MatrixType::B1, tiles.registers());
            for space in [StateSpace::Generic, StateSpace::Shared] {
                let (dsts, addr) = (registers.clone(), at(7));
                all.push(Inst::LdMatrix { tiles, space, dsts, addr });
                let srcs = registers.iter().map(|r| Operand::Reg(*r)).collect();
                all.push(Inst::StMatrix { tiles, space, addr, srcs });
            }
        }
    }
    all
}

fn copies() -> Vec<Inst> {
    use StateSpace::{Global, Shared, SharedCluster};
    let (policy, bytes) = (Some(register(B64, 6)), operand(U32, 2));
    let mut all = vec![
        Inst::CpAsyncCommit,
        Inst::CpAsyncWait { pending: None },
        Inst::CpAsyncWait { pending: Some(2) },
        Inst::BulkCommit,
        Inst::BulkWait { read: true, pending: 1 },
        Inst::BulkWait { read: false, pending: 0 },
        Inst::BulkPrefetch { addr: at(1), bytes, policy: None },
        Inst::BulkPrefetch { addr: at(1), bytes: Operand::int(32), policy },
        Inst::StBulk { space: Shared, addr: at(1), bytes: operand(U64, 2) },
        Inst::StBulk { space: StateSpace::Generic, addr: at(1), bytes: Operand::int(32) },
    ];
    for (cache, bytes) in [(CacheOp::Ca, 4), (CacheOp::Ca, 8), (CacheOp::Ca, 16), (CacheOp::Cg, 16)] {
        for limit in [
            SourceLimit::Full,
            SourceLimit::Bytes(operand(U32, 3)),
            SourceLimit::Bytes(Operand::int(4)),
            SourceLimit::Ignore(register(Pred, 2)),
        ] {
            for (l2_prefetch, policy) in
                [(L2Prefetch::Default, None), (L2Prefetch::B128, None), (L2Prefetch::B256, policy)]
            {
                all.push(Inst::CpAsync { cache, l2_prefetch, dst: at(1), src: at(2), bytes, limit, policy });
            }
        }
    }
    let counted = Completion::Mbarrier(at(3));
    for (dst_space, src_space, completion) in [
        (SharedCluster, Global, counted),
        (Shared, Global, counted),
        (SharedCluster, Shared, counted),
        (Global, Shared, Completion::BulkGroup),
    ] {
        let plain = BulkCopy {
            dst_space,
            src_space,
            dst: at(1),
            src: at(2),
            bytes,
            completion,
            multicast: None,
            policy: None,
            byte_mask: None,
        };
        all.push(Inst::BulkCopy(Box::new(plain.clone())));
        if src_space == Global || dst_space == Global {
            all.push(Inst::BulkCopy(Box::new(BulkCopy { policy, ..plain.clone() })));
        }
        if (dst_space, src_space) == (SharedCluster, Global) {
            let multicast = Some(operand(U16, 1));
            all.push(Inst::BulkCopy(Box::new(BulkCopy { multicast, policy, ..plain.clone() })));
        }
        if dst_space == Global {
            let byte_mask = Some(operand(U16, 1));
            all.push(Inst::BulkCopy(Box::new(BulkCopy { byte_mask, policy, ..plain })));
        }
    }
    for ty in ScalarType::ALL.iter().copied().filter(|t| *t != Pred) {
        for op in BulkOp::ALL {
            for dst_space in [Global, SharedCluster] {
                let noftz = *op == BulkOp::Add && matches!(ty, F16 | BF16);
                let completion = if dst_space == Global { Completion::BulkGroup } else { counted };
                let (dst, src) = (at(1), at(2));
                let reduce =
                    BulkReduce { op: *op, ty, noftz, dst_space, dst, src, bytes, completion, policy: None };
                all.push(Inst::BulkReduce(Box::new(reduce)));
            }
        }
    }
    all.extend(tensor_copies());
    all
}

fn tensor_copies() -> Vec<Inst> {
    use StateSpace::{Shared, SharedCluster};
    let policy = Some(register(B64, 6));
    let mut all = Vec::new();
    let mut push = |transfer: TensorTransfer, mode: TensorCopyMode, dims: u8, policy: Option<Reg>| {
        let quad = matches!(mode, TensorCopyMode::Gather4 | TensorCopyMode::Scatter4);
        let coords = if quad { 5 } else { usize::from(dims) };
        let offsets = match mode {
            TensorCopyMode::Im2col => usize::from(dims) - 2,
            TensorCopyMode::Im2colW | TensorCopyMode::Im2colW128 => 2,
            _ => 0,
        };
        all.push(Inst::TensorCopy(Box::new(TensorCopy {
            transfer,
            dims,
            mode,
            map: at(1),
            coords: (0..coords).map(|n| operand(S32, n)).collect(),
            offsets: (0..offsets).map(|n| operand(U16, n)).collect(),
            policy,
        })));
    };
    for dims in 1..=5 {
        for mode in TensorCopyMode::ALL.iter().copied() {
            let fits = match mode {
                TensorCopyMode::Tile => true,
                TensorCopyMode::Gather4 | TensorCopyMode::Scatter4 => dims == 2,
                _ => dims >= 3,
            };
            let stores = matches!(mode, TensorCopyMode::Scatter4 | TensorCopyMode::Im2colNoOffsets);
            if !fits {
                continue;
            }
            if stores || mode == TensorCopyMode::Tile {
                push(TensorTransfer::Store { src: at(2) }, mode, dims, policy);
                push(TensorTransfer::Reduce { op: BulkOp::Min, src: at(2) }, mode, dims, None);
            }
            if stores {
                continue;
            }
            push(TensorTransfer::Prefetch, mode, dims, policy);
            for (dst_space, cta_group, spread) in [
                (SharedCluster, None, false),
                (SharedCluster, None, true),
                (Shared, None, false),
                (SharedCluster, Some(2), true),
            ] {
                let multicast = spread.then(|| operand(U16, 3));
                let (dst, barrier) = (at(2), at(3));
                let load = TensorTransfer::Load { dst_space, dst, barrier, multicast, cta_group };
                push(load, mode, dims, if spread { policy } else { None });
            }
        }
    }
    all
}

fn barriers() -> Vec<Inst> {
    use StateSpace::{Generic, Shared, SharedCluster};
    let (state, count) = (register(B64, 5), operand(U32, 1));
    let orders = |strongest: Semantics| {
        let mut all = vec![Ordering::WEAK];
        for semantics in [strongest, Semantics::Relaxed] {
            all.extend([Scope::Cta, Scope::Cluster].map(|scope| Ordering::new(semantics, scope)));
        }
        all
    };
    let mut all = vec![Inst::MbarrierPendingCount { dst: register(B32, 0), state: state.into() }];
    for space in [Generic, Shared] {
        let addr = at(1);
        all.push(Inst::MbarrierInit { space, addr, count });
        all.push(Inst::MbarrierInval { space, addr });
        all.extend([false, true].map(|noinc| Inst::CpAsyncArrive { noinc, space, addr }));
        for ordering in orders(Semantics::Acquire) {
            for try_wait in [false, true] {
                for phase in [MbarrierPhase::State(state.into()), MbarrierPhase::Parity(count)] {
                    let dst = register(Pred, 0);
                    let nanoseconds = try_wait.then_some(count);
                    all.push(Inst::MbarrierWait { try_wait, ordering, space, dst, addr, phase, nanoseconds });
                    let nanoseconds = None;
                    all.push(Inst::MbarrierWait { try_wait, ordering, space, dst, addr, phase, nanoseconds });
                }
            }
        }
    }
    for space in [Generic, Shared, SharedCluster] {
        let addr = at(1);
        for ordering in orders(Semantics::Release) {
            for drop in [false, true] {
                let dsts = if space == SharedCluster { vec![None] } else { vec![None, Some(state)] };
                for dst in dsts {
                    let base = |no_complete, expect_tx, count| Inst::MbarrierArrive {
                        drop,
                        no_complete,
                        expect_tx,
                        ordering,
                        space,
                        dst,
                        addr,
                        count,
                    };
                    all.push(base(false, None, None));
                    all.push(base(false, None, Some(count)));
                    all.push(base(false, Some(count), None));
                    if space != SharedCluster {
                        all.push(base(true, None, Some(count)));
                    }
                }
            }
        }
        for ordering in [Ordering::WEAK, Ordering::new(Semantics::Relaxed, Scope::Cluster)] {
            for complete in [false, true] {
                all.push(Inst::MbarrierTx { complete, ordering, space, addr, bytes: count });
            }
        }
    }
    all
}

fn stores() -> Vec<Inst> {
    let mut all = Vec::new();
    let barrier = AsyncOrder::Mbarrier(at(2));
    // Byte registers are not among those of the kernel around the instructions.
    for ty in ScalarType::ALL.iter().copied().filter(|t| (16..=64).contains(&t.bits())) {
        for (space, order) in [
            (StateSpace::SharedCluster, barrier),
            (StateSpace::Global, AsyncOrder::Release { mmio: false, scope: Scope::Gpu }),
            (StateSpace::Global, AsyncOrder::Release { mmio: true, scope: Scope::Sys }),
        ] {
            for width in [1, 2, 4] {
                let counted = matches!(order, AsyncOrder::Mbarrier(_));
                if width > 1 && (!counted || width * ty.bytes() as usize > 16) {
                    continue;
                }
                let srcs = (0..width).map(|n| operand(ty, n)).collect();
                all.push(Inst::StAsync { space, ty, addr: at(1), srcs, order });
            }
            for op in AtomOp::ALL {
                all.push(Inst::RedAsync { op: *op, space, ty, addr: at(1), b: operand(ty, 1), order });
            }
        }
        for (op, width) in AtomOp::ALL.iter().flat_map(|op| [2, 4, 8].map(|w| (*op, w))) {
            let half = matches!(ty, F16 | F16x2 | BF16 | BF16x2);
            for reads in [false, true] {
                all.push(Inst::AtomVector {
                    op,
                    space: StateSpace::Global,
                    ty,
                    ordering: Ordering::WEAK,
                    noftz: half,
                    dsts: reads.then(|| (0..width).map(|n| Some(register(ty, n))).collect()),
                    addr: at(1),
                    srcs: (0..width).map(|n| operand(ty, n)).collect(),
                    policy: reads.then(|| register(B64, 6)),
                });
            }
        }
    }
    for field in TensormapField::ALL.iter().copied() {
        for space in [StateSpace::Generic, StateSpace::Global, StateSpace::Shared] {
            let index = field.is_indexed().then_some(1);
            let value = if field.is_wide() { operand(B64, 2) } else { Operand::int(1) };
            all.push(Inst::TensormapReplace { field, space, addr: at(1), index, value });
        }
    }
    all
}

fn clusters() -> Vec<Inst> {
    use StateSpace::{Generic, Global, SharedCluster};
    let mut all = vec![
        Inst::FenceRestricted { acquire: true },
        Inst::FenceRestricted { acquire: false },
        Inst::MbarrierInitFence,
        Inst::GridDepControl { wait: true },
        Inst::GridDepControl { wait: false },
        Inst::ProxyFence(ProxyFence::Alias),
        Inst::ProxyFence(ProxyFence::AsyncGeneric { acquire: true }),
        Inst::ProxyFence(ProxyFence::AsyncGeneric { acquire: false }),
        Inst::PrefetchUniform { addr: at(1) },
        Inst::PmEvent { mask: false, value: 7 },
        Inst::PmEvent { mask: true, value: 0xF0 },
    ];
    for space in [Generic, Global, StateSpace::Shared, SharedCluster] {
        all.push(Inst::ProxyFence(ProxyFence::Async(space)));
    }
    for scope in Scope::ALL.iter().copied() {
        all.push(Inst::ProxyFence(ProxyFence::TensormapRelease(scope)));
        all.push(Inst::ProxyFence(ProxyFence::TensormapAcquire { scope, addr: at(1) }));
        all.push(Inst::TensormapCopyFence { scope, dst: at(1), src: at(2) });
    }
    for (arrive, semantics) in [
        (true, Semantics::Weak),
        (true, Semantics::Release),
        (true, Semantics::Relaxed),
        (false, Semantics::Weak),
        (false, Semantics::Acquire),
    ] {
        all.extend([false, true].map(|aligned| Inst::ClusterBarrier { arrive, semantics, aligned }));
    }
    for (space, ty) in [Generic, SharedCluster].into_iter().flat_map(|s| [(s, U32), (s, U64)]) {
        let (dst, a) = (register(ty, 0), operand(ty, 1));
        all.push(Inst::Mapa { space, ty, dst, a, rank: operand(U32, 2) });
        all.push(Inst::Mapa { space, ty, dst, a, rank: Operand::int(1) });
        all.push(Inst::GetCtaRank { space, ty, dst: register(U32, 0), a });
    }
    for space in [Generic, StateSpace::Param, StateSpace::Const] {
        all.push(Inst::PrefetchTensormap { space, addr: at(1) });
    }
    for space in [Generic, Global] {
        all.push(Inst::Discard { space, addr: at(1) });
        all.push(Inst::ApplyPriority { space, addr: at(1) });
    }
    let (dst, bytes) = (register(B64, 0), operand(U32, 1));
    let mut policy = |source| all.push(Inst::CreatePolicy { dst, source });
    for primary in L2Priority::ALL.iter().copied() {
        for secondary in [None, Some(L2Priority::First), Some(L2Priority::Unchanged)] {
            let fraction = secondary.map(|_| Operand::f32(0.5));
            policy(PolicySource::Fractional { primary, secondary, fraction });
            let (addr, total_bytes) = (at(1), operand(U32, 2));
            let primary_bytes = bytes;
            policy(PolicySource::Range {
                space: Global,
                primary,
                secondary,
                addr,
                primary_bytes,
                total_bytes,
            });
        }
    }
    policy(PolicySource::Convert { property: operand(B64, 1) });
    for ty in [U32, U64] {
        let (dst, src) = (register(ty, 0), register(ty, 1));
        all.push(Inst::Alloca { ty, dst, bytes: src.into(), align: None });
        all.push(Inst::Alloca { ty, dst, bytes: src.into(), align: Some(16) });
        all.push(Inst::StackSave { ty, dst });
        all.push(Inst::StackRestore { ty, src });
    }
    all
}

fn scalar() -> Vec<Inst> {
    let (dst, pred) = (register(B32, 0), register(Pred, 0));
    let [a, b, c] = [1, 2, 3].map(|n| operand(B32, n));
    let q = PredUse { reg: register(Pred, 1), negated: true };
    let mut all = vec![
        Inst::Lop3Pred { op: BoolOp::Or, dst: Some(dst), pred, a, b, c, lut: 0x80, q },
        Inst::Lop3Pred { op: BoolOp::And, dst: None, pred, a, b, c, lut: 0x80, q },
        Inst::Fns { dst, mask: a, base: b, offset: c },
    ];
    for (op, bytes) in VideoOp::ALL.iter().flat_map(|op| [(*op, false), (*op, true)]) {
        let plain = VideoForm::plain(op, bytes, [U32, S32, U32]);
        let lanes = plain.lanes();
        let mut select = plain.select;
        select.iter_mut().for_each(|side| side[..lanes].reverse());
        let masked = VideoForm { mask: 2, saturate: true, select, ..plain };
        for form in [plain, masked, VideoForm { accumulate: true, ..plain }] {
            all.push(Inst::Video { form, dst, a, b, c });
        }
    }
    for high in [false, true] {
        for (a_ty, b_ty) in [(U32, S32), (S32, U32), (U32, U32), (S32, S32)] {
            all.push(Inst::Dp2a { high, a_ty, b_ty, dst, a, b, c });
        }
    }
    for to in PackedInteger::ALL.iter().copied() {
        all.push(Inst::CvtPack { to, dst, a, b, c: (to.bits() < 16).then_some(c) });
    }
    for ty in isa::LOAD_UNIFORM.types.iter() {
        for width in [1, 2, 4] {
            if width as u32 * ty.bits() <= 128 {
                let dsts = (0..width).map(|n| Some(register(ty, n))).collect();
                all.push(Inst::Ldu { space: StateSpace::Global, ty, dsts, addr: at(7) });
            }
        }
    }
    for op in [ReduxOp::Min, ReduxOp::Max] {
        for (abs, nan) in [(false, false), (true, false), (false, true), (true, true)] {
            all.push(Inst::Redux { op, abs, nan, ty: F32, dst, a, mask: Operand::int(-1) });
        }
    }
    for (to, sources) in
        [(F16x2, 2), (BF16x2, 2), (E4M3x4, 4), (E5M2x4, 4), (E2M1x4, 4), (E2M3x4, 4), (E3M2x4, 4)]
    {
        for relu in [false, true] {
            let mods = Modifiers { relu, satfinite: true, ..Modifiers::NONE };
            let srcs = (0..sources).map(|n| operand(F32, n)).collect();
            all.push(Inst::CvtStochastic { to, from: F32, mods, dst: register(to, 0), srcs, bits: a });
        }
    }
    for (ty, width) in [(B32, 8), (B64, 4)] {
        for l2 in L2Eviction::ALL.iter().copied().filter(|l2| *l2 != L2Eviction::Default) {
            let hints = CacheHints { l2, ..CacheHints::NONE };
            all.push(crate::forms::load(StateSpace::Global, ty, width, Ordering::WEAK, hints));
            all.push(crate::forms::store(StateSpace::Global, ty, width, Ordering::WEAK, hints));
        }
    }
    all.extend(arithmetic());
    all
}

/// Sums on f32 with narrow operands, and extremes of three values, with every set of modifiers.
pub(crate) fn arithmetic() -> Vec<Inst> {
    let mut all = Vec::new();
    for set in crate::forms::modifier_sets() {
        let mods = set.to_modifiers();
        for op in MixedOp::ALL.iter().copied() {
            for narrow in [F16, BF16] {
                let (dst, a, c) = (register(F32, 0), operand(narrow, 1), operand(F32, 2));
                let b = (op == MixedOp::Fma).then(|| operand(narrow, 3));
                all.push(Inst::Mixed { op, narrow, mods, dst, a, b, c });
            }
        }
        for (max, abs) in [(false, false), (true, false), (true, true)] {
            let [a, b, c] = [1, 2, 3].map(|n| operand(F32, n));
            all.push(Inst::MinMax3 { max, abs, ty: F32, mods, dst: register(F32, 0), a, b, c });
        }
    }
    all
}

/// Instructions of every family; the table has some of them and refuses the others.
pub(crate) fn candidates() -> Vec<Inst> {
    [tensor(), tcgen05(), copies(), barriers(), stores(), clusters(), scalar()].concat()
}

/// One instruction of every form that the table has.
pub(crate) fn every_form() -> Vec<Inst> {
    candidates().into_iter().filter(|i| isa::form(i).is_ok()).collect()
}

/// Every shape of `mma` with every pair of types and accumulators, dense and without kinds.
pub(crate) fn every_mma() -> Vec<Inst> {
    use MatrixType::*;
    let mut all = Vec::new();
    for shape in MmaShape::ALL {
        for (a, b) in MatrixType::ALL.iter().flat_map(|a| MatrixType::ALL.iter().map(move |b| (*a, *b))) {
            for (d, c) in [(F16, F16), (F32, F32), (S32, S32), (F64, F64)] {
                let product = (a == B1 && b == B1).then_some(BitProduct::And);
                let inst = mma(*shape, [d, a, b, c], product, None, None, None);
                // Fragments of less than a register cannot be written.
                if matches!(&inst, Inst::Mma(m) if !m.d.is_empty() && !m.a.is_empty() && !m.b.is_empty()) {
                    all.push(inst);
                }
            }
        }
    }
    all
}
