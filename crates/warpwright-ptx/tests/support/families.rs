//! Random tensor-core, asynchronous and cluster instructions.

use warpwright_ptx::*;

use super::Choices;

impl<F: FnMut() -> u64> Choices<F> {
    /// An address without a symbol.
    fn plain_address(&mut self, f: &Function) -> Address {
        let offset = self.offset();
        let base = if self.flag() { AddressBase::Absolute } else { AddressBase::Reg(self.reg(f)) };
        Address { base, offset }
    }

    /// A register that cannot be taken for a predicate.
    fn value(&mut self, f: &Function) -> Option<Reg> {
        let reg = self.reg(f);
        (f.reg_type(reg) != Some(ScalarType::Pred)).then_some(reg)
    }

    fn fragment(&mut self, f: &Function) -> Vec<Operand> {
        (0..=self.below(4)).map(|_| self.operand(f)).collect()
    }

    fn registers(&mut self, f: &Function) -> Vec<Reg> {
        (0..=self.below(4)).map(|_| self.reg(f)).collect()
    }

    fn optional_policy(&mut self, f: &Function) -> Option<Reg> {
        self.maybe(|c| c.reg(f))
    }

    fn sparsity(&mut self, f: &Function) -> Option<Sparsity> {
        self.maybe(|c| Sparsity {
            ordered: c.flag(),
            metadata: c.operand(f),
            selector: u8::try_from(c.below(4)).unwrap_or(0),
        })
    }

    fn of_barrier(&mut self) -> Ordering {
        let semantics = [Semantics::Weak, Semantics::Acquire, Semantics::Release, Semantics::Relaxed];
        self.ordering(&semantics)
    }

    pub(super) fn family(&mut self, f: &Function) -> Inst {
        match self.below(5) {
            0 => self.tensor(f),
            1 => self.barrier_operation(f),
            2 => self.copy(f),
            3 => self.cluster(f),
            _ => self.scalar(f),
        }
    }

    fn mma(&mut self, f: &Function) -> Inst {
        let scale = |c: &mut Self| Scale { data: c.operand(f), byte: c.operand(f), thread: c.operand(f) };
        Inst::Mma(Box::new(Mma {
            shape: self.pick(MmaShape::ALL),
            a_layout: self.pick(MatrixLayout::ALL),
            b_layout: self.pick(MatrixLayout::ALL),
            d_ty: self.pick(MatrixType::ALL),
            a_ty: self.pick(MatrixType::ALL),
            b_ty: self.pick(MatrixType::ALL),
            c_ty: self.pick(MatrixType::ALL),
            rounding: self.maybe(|c| c.pick(Rounding::ALL)),
            satfinite: self.flag(),
            product: self.maybe(|c| c.pick(BitProduct::ALL)),
            kind: self.maybe(|c| c.pick(MmaKind::ALL)),
            sparsity: self.sparsity(f),
            scale: self.maybe(|c| BlockScale {
                vector: c.maybe(|c| c.pick(ScaleVector::ALL)),
                ty: c.pick(ScaleType::ALL),
                a: scale(c),
                b: scale(c),
            }),
            d: self.registers(f),
            a: self.fragment(f),
            b: self.fragment(f),
            c: self.fragment(f),
        }))
    }

    fn wgmma(&mut self, f: &Function) -> Inst {
        let mut m = Wgmma {
            n: 8 * (1 + self.below(32) as u16),
            k: self.pick(&[8, 16, 32, 64, 256]),
            d_ty: self.pick(MatrixType::ALL),
            a_ty: self.pick(MatrixType::ALL),
            b_ty: self.pick(MatrixType::ALL),
            satfinite: self.flag(),
            sparsity: self.sparsity(f).map(|s| Sparsity { ordered: false, ..s }),
            d: (0..=self.below(127)).map(|_| self.reg(f)).collect(),
            a: WgmmaSource::Descriptor(self.operand(f)),
            b: self.operand(f),
            accumulate: Accumulate::Always(self.flag()),
            negate_a: self.flag(),
            negate_b: self.flag(),
            transpose_a: self.flag(),
            transpose_b: self.flag(),
        };
        if self.flag() {
            m.a = WgmmaSource::Registers(self.fragment(f));
        }
        if self.flag() {
            m.accumulate = Accumulate::If(self.reg(f));
        }
        // What is not written is not there.
        if !m.has_scales() {
            (m.negate_a, m.negate_b) = (false, false);
        }
        m.transpose_b &= m.has_transposes();
        m.transpose_a &= m.has_transposes() && matches!(m.a, WgmmaSource::Descriptor(_));
        Inst::Wgmma(Box::new(m))
    }

    fn wmma(&mut self, f: &Function) -> Inst {
        let tile = Box::new(WmmaTile {
            matrix: self.pick(&[WmmaMatrix::A, WmmaMatrix::B, WmmaMatrix::C]),
            layout: self.pick(MatrixLayout::ALL),
            shape: self.pick(WmmaShape::ALL),
            space: self.pick(&[StateSpace::Generic, StateSpace::Shared, StateSpace::Global]),
            ty: self.pick(MatrixType::ALL),
            addr: self.plain_address(f),
            stride: self.maybe(|c| c.operand(f)),
        });
        match self.below(3) {
            0 => Inst::WmmaLoad { tile, dsts: self.registers(f) },
            1 => {
                let tile = Box::new(WmmaTile { matrix: WmmaMatrix::D, ..*tile });
                Inst::WmmaStore { tile, srcs: self.fragment(f) }
            }
            _ => Inst::Wmma(Box::new(Wmma {
                shape: self.pick(WmmaShape::ALL),
                a_layout: self.pick(MatrixLayout::ALL),
                b_layout: self.pick(MatrixLayout::ALL),
                d_ty: self.pick(MatrixType::ALL),
                a_ty: self.pick(MatrixType::ALL),
                b_ty: self.pick(MatrixType::ALL),
                c_ty: self.pick(MatrixType::ALL),
                rounding: self.maybe(|c| c.pick(&[Rounding::Rn, Rounding::Rz, Rounding::Rm, Rounding::Rp])),
                satfinite: self.flag(),
                product: self.maybe(|c| c.pick(BitProduct::ALL)),
                d: self.registers(f),
                a: self.fragment(f),
                b: self.fragment(f),
                c: self.fragment(f),
            })),
        }
    }

    fn tensor_memory(&mut self, f: &Function) -> Address {
        Address::reg(self.reg(f), self.offset())
    }

    fn tcgen05_mma(&mut self, f: &Function) -> Tcgen05Mma {
        let kind = self.pick(Tcgen05Kind::ALL);
        let sizes = [
            None,
            Some(Tcgen05ScaleSize::Vector(self.pick(ScaleVector::ALL))),
            Some(Tcgen05ScaleSize::Block(self.pick(Tcgen05Block::ALL))),
        ];
        let scales =
            Tcgen05Scales { size: self.pick(&sizes), a: self.tensor_memory(f), b: self.tensor_memory(f) };
        let a = if self.flag() {
            Tcgen05Source::Memory(self.tensor_memory(f))
        } else {
            Tcgen05Source::Descriptor(self.operand(f))
        };
        Tcgen05Mma {
            pair: self.flag(),
            kind,
            scales: kind.is_scaled().then_some(scales),
            shift: self.flag(),
            collector: self.maybe(|c| c.pick(Tcgen05Collector::ALL)),
            d: self.tensor_memory(f),
            a,
            b: self.operand(f),
            descriptor: self.operand(f),
            disabled: if self.flag() { self.fragment(f) } else { Vec::new() },
            accumulate: self.reg(f),
            scale_d: self.maybe(|c| c.below(16) as u8),
        }
    }

    fn tcgen05(&mut self, f: &Function) -> Inst {
        let shape = self.pick(Tcgen05Shape::ALL);
        let split = if shape == Tcgen05Shape::L16B32X2 { self.u32() } else { 0 };
        let access = Tcgen05Access { shape, count: self.pick(&[1, 2, 64, 128]), packed: self.flag(), split };
        let pair = self.flag();
        Inst::Tcgen05(Box::new(match self.below(11) {
            0 => Tcgen05::Alloc {
                pair,
                space: self.pick(&[StateSpace::Generic, StateSpace::Shared]),
                addr: self.plain_address(f),
                columns: self.operand(f),
            },
            1 => Tcgen05::Dealloc { pair, memory: self.operand(f), columns: self.operand(f) },
            2 => Tcgen05::Relinquish { pair },
            3 => Tcgen05::Load { access, dsts: self.registers(f), memory: self.tensor_memory(f) },
            4 => Tcgen05::Store { access, memory: self.tensor_memory(f), srcs: self.fragment(f) },
            5 => Tcgen05::Wait { stores: pair },
            6 => Tcgen05::Fence { after: pair },
            7 => Tcgen05::Commit {
                pair,
                space: self.pick(&[StateSpace::Generic, StateSpace::SharedCluster]),
                addr: self.plain_address(f),
                multicast: self.maybe(|c| c.operand(f)),
            },
            8 => Tcgen05::Copy {
                pair,
                shape: self.pick(Tcgen05CopyShape::ALL),
                multicast: self.maybe(|c| c.pick(Tcgen05Multicast::ALL)),
                packed: self.maybe(|c| c.pick(Tcgen05Packed::ALL)),
                memory: self.tensor_memory(f),
                descriptor: self.operand(f),
            },
            9 => Tcgen05::Shift { pair, memory: self.tensor_memory(f) },
            _ => Tcgen05::Mma(self.tcgen05_mma(f)),
        }))
    }

    fn tensor(&mut self, f: &Function) -> Inst {
        let tiles = MatrixTiles {
            shape: self.pick(MatrixShape::ALL),
            count: self.pick(&[1, 2, 4]),
            transposed: self.flag(),
            element: self.pick(MatrixElement::ALL),
        };
        let space = self.pick(&[StateSpace::Generic, StateSpace::Shared]);
        match self.below(11) {
            10 => self.tcgen05(f),
            9 => self.wmma(f),
            0 | 1 => self.mma(f),
            2 | 3 => self.wgmma(f),
            4 => Inst::LdMatrix { tiles, space, dsts: self.registers(f), addr: self.plain_address(f) },
            5 => Inst::StMatrix { tiles, space, addr: self.plain_address(f), srcs: self.fragment(f) },
            6 => Inst::MovMatrix { dst: self.reg(f), a: self.operand(f) },
            7 => {
                if self.flag() {
                    Inst::WgmmaCommit
                } else {
                    Inst::WgmmaFence
                }
            }
            _ => Inst::WgmmaWait { pending: self.u32() },
        }
    }

    fn barrier_operation(&mut self, f: &Function) -> Inst {
        let space = self.pick(&[StateSpace::Generic, StateSpace::Shared, StateSpace::SharedCluster]);
        let (addr, ordering) = (self.plain_address(f), self.of_barrier());
        match self.below(8) {
            0 => Inst::MbarrierInit { space, addr, count: self.operand(f) },
            1 => Inst::MbarrierInval { space, addr },
            2 | 3 => {
                let expect_tx = self.maybe(|c| c.operand(f));
                Inst::MbarrierArrive {
                    drop: self.flag(),
                    no_complete: self.flag(),
                    expect_tx,
                    ordering,
                    space,
                    dst: self.sink(f),
                    addr,
                    count: self.maybe(|c| c.operand(f)).filter(|_| expect_tx.is_none()),
                }
            }
            4 => Inst::MbarrierWait {
                try_wait: self.flag(),
                ordering,
                space,
                dst: self.reg(f),
                addr,
                phase: if self.flag() {
                    MbarrierPhase::State(self.operand(f))
                } else {
                    MbarrierPhase::Parity(self.operand(f))
                },
                nanoseconds: self.maybe(|c| c.operand(f)),
            },
            5 => Inst::MbarrierTx { complete: self.flag(), ordering, space, addr, bytes: self.operand(f) },
            6 => Inst::MbarrierPendingCount { dst: self.reg(f), state: self.operand(f) },
            _ => Inst::CpAsyncArrive { noinc: self.flag(), space, addr },
        }
    }

    fn copy(&mut self, f: &Function) -> Inst {
        let spaces = [StateSpace::Global, StateSpace::Shared, StateSpace::SharedCluster];
        let (dst_space, src_space) = (self.pick(&spaces), self.pick(&spaces));
        let (dst, src, bytes) = (self.plain_address(f), self.plain_address(f), self.operand(f));
        let policy = self.optional_policy(f);
        let completion =
            if self.flag() { Completion::BulkGroup } else { Completion::Mbarrier(self.plain_address(f)) };
        match self.below(9) {
            0 => {
                let limit = match (self.below(3), self.value(f)) {
                    (1, Some(reg)) => SourceLimit::Bytes(reg.into()),
                    (2, None) => {
                        let reg = (0u32..).map(Reg).find(|r| f.reg_type(*r) == Some(ScalarType::Pred));
                        reg.map_or(SourceLimit::Full, SourceLimit::Ignore)
                    }
                    _ => SourceLimit::Full,
                };
                Inst::CpAsync {
                    cache: self.pick(&[CacheOp::Ca, CacheOp::Cg]),
                    l2_prefetch: self.pick(L2Prefetch::ALL),
                    dst,
                    src,
                    bytes: self.u32(),
                    limit,
                    policy: policy.and_then(|_| self.value(f)),
                }
            }
            1 => Inst::CpAsyncWait { pending: self.maybe(Self::u32) },
            2 => Inst::BulkCopy(Box::new(BulkCopy {
                dst_space,
                src_space,
                dst,
                src,
                bytes,
                completion,
                multicast: self.maybe(|c| c.operand(f)),
                policy,
                byte_mask: self.maybe(|c| c.operand(f)),
            })),
            3 => {
                let (op, ty, noftz) = (self.pick(BulkOp::ALL), self.ty(), self.flag());
                let reduce = BulkReduce { op, ty, noftz, dst_space, dst, src, bytes, completion, policy };
                Inst::BulkReduce(Box::new(reduce))
            }
            4 => Inst::BulkPrefetch { addr: src, bytes, policy },
            5 => self.tensor_copy(f, policy),
            6 => Inst::BulkWait { read: self.flag(), pending: self.u32() },
            7 => {
                let order = if self.flag() {
                    AsyncOrder::Release { mmio: self.flag(), scope: self.pick(Scope::ALL) }
                } else {
                    AsyncOrder::Mbarrier(src)
                };
                let (space, ty) = (dst_space, self.ty());
                if self.flag() {
                    return Inst::RedAsync {
                        op: self.pick(AtomOp::ALL),
                        space,
                        ty,
                        addr: dst,
                        b: bytes,
                        order,
                    };
                }
                let srcs = (0..self.pick(&[1, 2, 4])).map(|_| self.operand(f)).collect();
                Inst::StAsync { space, ty, addr: dst, srcs, order }
            }
            _ => {
                let field = self.pick(TensormapField::ALL);
                let index = field.is_indexed().then(|| self.u32());
                Inst::TensormapReplace { field, space: dst_space, addr: dst, index, value: bytes }
            }
        }
    }

    fn tensor_copy(&mut self, f: &Function, policy: Option<Reg>) -> Inst {
        let (src, mode) = (self.plain_address(f), self.pick(TensorCopyMode::ALL));
        let transfer = match self.below(4) {
            0 => TensorTransfer::Store { src },
            1 => TensorTransfer::Reduce { op: self.pick(BulkOp::ALL), src },
            2 => TensorTransfer::Prefetch,
            _ => TensorTransfer::Load {
                dst_space: self.pick(&[StateSpace::Shared, StateSpace::SharedCluster]),
                dst: src,
                barrier: self.plain_address(f),
                multicast: self.maybe(|c| c.operand(f)),
                cta_group: self.maybe(|c| c.pick(&[1, 2])),
            },
        };
        let stores = matches!(transfer, TensorTransfer::Store { .. } | TensorTransfer::Reduce { .. });
        let unrolls =
            matches!(mode, TensorCopyMode::Im2col | TensorCopyMode::Im2colW | TensorCopyMode::Im2colW128);
        let offsets = if unrolls && !stores { self.fragment(f) } else { Vec::new() };
        let map = self.plain_address(f);
        let (dims, coords) = (self.pick(&[1, 2, 3, 4, 5]), self.fragment(f));
        Inst::TensorCopy(Box::new(TensorCopy { transfer, dims, mode, map, coords, offsets, policy }))
    }

    fn cluster(&mut self, f: &Function) -> Inst {
        let (addr, scope) = (self.plain_address(f), self.pick(Scope::ALL));
        let space = self.pick(&[StateSpace::Generic, StateSpace::Global]);
        match self.below(11) {
            0 => {
                let arrive = self.flag();
                let strongest = if arrive { Semantics::Release } else { Semantics::Acquire };
                let semantics = self.pick(&[Semantics::Weak, strongest]);
                Inst::ClusterBarrier { arrive, semantics, aligned: self.flag() }
            }
            1 => Inst::ProxyFence(ProxyFence::TensormapAcquire { scope, addr }),
            2 => Inst::ProxyFence(ProxyFence::TensormapRelease(scope)),
            3 => Inst::ProxyFence(ProxyFence::AsyncGeneric { acquire: self.flag() }),
            4 => Inst::ProxyFence(ProxyFence::Async(self.pick(StateSpace::ALL))),
            5 => Inst::Mapa {
                space,
                ty: self.ty(),
                dst: self.reg(f),
                a: self.operand(f),
                rank: self.operand(f),
            },
            6 => Inst::GetCtaRank { space, ty: self.ty(), dst: self.reg(f), a: self.operand(f) },
            7 => Inst::Discard { space, addr },
            8 => Inst::PrefetchTensormap { space, addr },
            9 => Inst::SetMaxNreg { increase: self.flag(), count: self.u32() },
            _ => {
                let primary = self.pick(L2Priority::ALL);
                let secondary = self.maybe(|c| c.pick(L2Priority::ALL));
                let source = if self.flag() {
                    let (primary_bytes, total_bytes) = (self.operand(f), self.operand(f));
                    PolicySource::Range { space, primary, secondary, addr, primary_bytes, total_bytes }
                } else {
                    let fraction = self.maybe(|c| c.operand(f));
                    PolicySource::Fractional { primary, secondary, fraction }
                };
                Inst::CreatePolicy { dst: self.reg(f), source }
            }
        }
    }

    fn video(&mut self) -> VideoForm {
        let types = std::array::from_fn(|_| self.pick(&[ScalarType::U32, ScalarType::S32]));
        let plain = VideoForm::plain(self.pick(VideoOp::ALL), self.flag(), types);
        let lanes = plain.lanes();
        let mut select = plain.select;
        for side in &mut select {
            side[..lanes].iter_mut().for_each(|lane| *lane = self.below(2 * lanes) as u8);
        }
        let mask = 1 + self.below((1 << lanes) - 1) as u8;
        VideoForm { saturate: self.flag(), accumulate: self.flag(), mask, select, ..plain }
    }

    fn scalar(&mut self, f: &Function) -> Inst {
        let (dst, a, b, c) = (self.reg(f), self.operand(f), self.operand(f), self.operand(f));
        match self.below(9) {
            8 => Inst::Video { form: self.video(), dst, a, b, c },
            0 => Inst::Dp2a { high: self.flag(), a_ty: self.ty(), b_ty: self.ty(), dst, a, b, c },
            1 => Inst::Lop3Pred {
                op: self.pick(&[BoolOp::And, BoolOp::Or]),
                dst: self.sink(f),
                pred: dst,
                a,
                b,
                c,
                lut: self.u32() as u8,
                q: self.pred(f),
            },
            2 => Inst::Fns { dst, mask: a, base: b, offset: c },
            3 => Inst::MinMax3 {
                max: self.flag(),
                abs: self.flag(),
                ty: self.ty(),
                mods: self.mods(),
                dst,
                a,
                b,
                c,
            },
            4 => {
                let (op, narrow) = (self.pick(MixedOp::ALL), self.pick(&[ScalarType::F16, ScalarType::BF16]));
                let b = (op == MixedOp::Fma).then_some(b);
                Inst::Mixed { op, narrow, mods: self.mods(), dst, a, b, c }
            }
            5 => {
                let mods = Modifiers { rounding: None, ..self.mods() };
                let srcs = if self.flag() { vec![a, b, c, a] } else { vec![a, b] };
                Inst::CvtStochastic { to: self.ty(), from: self.ty(), mods, dst, srcs, bits: c }
            }
            6 => Inst::CvtPack { to: self.pick(PackedInteger::ALL), dst, a, b, c: self.maybe(|_| c) },
            _ => {
                let width = self.pick(&[2, 4, 8]);
                let reads = self.flag();
                Inst::AtomVector {
                    op: self.pick(AtomOp::ALL),
                    space: self.pick(StateSpace::ALL),
                    ty: self.ty(),
                    ordering: self.of_barrier(),
                    noftz: self.flag(),
                    dsts: reads.then(|| (0..width).map(|_| self.sink(f)).collect()),
                    addr: self.plain_address(f),
                    srcs: (0..width).map(|_| self.operand(f)).collect(),
                    policy: self.optional_policy(f),
                }
            }
        }
    }
}
