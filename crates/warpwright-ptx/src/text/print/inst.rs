//! Instructions and operands as text.

mod asynchronous;
mod tcgen05;
mod tensor;

use super::Body;
use crate::inst::*;
use crate::types::*;

impl Body<'_> {
    pub(super) fn inst(&mut self, inst: &Inst) {
        match *inst {
            Inst::Unary { op, ty, ref mods, dst, a } => {
                self.arith(op.name(), mods, ty);
                self.operands(dst, &[a]);
            }
            Inst::Binary { op, ty, ref mods, dst, a, b } => {
                self.arith(op.name(), mods, ty);
                self.operands(dst, &[a, b]);
            }
            Inst::Ternary { op, ty, ref mods, dst, a, b, c } => {
                // The mode of `prmt` follows its type.
                match op.name().strip_prefix("prmt.") {
                    Some(mode) => {
                        self.arith("prmt", mods, ty);
                        self.dot(mode);
                    }
                    None => self.arith(op.name(), mods, ty),
                }
                self.operands(dst, &[a, b]);
                if op == TernaryOp::Prmt { self.comma_mask(c) } else { self.comma(c) }
            }
            Inst::Bfi { ty, dst, a, b, pos, len } => {
                self.arith("bfi", &Modifiers::NONE, ty);
                self.operands(dst, &[a, b, pos, len]);
            }
            Inst::Lop3 { dst, a, b, c, lut } => {
                self.text("lop3.b32");
                self.operands(dst, &[a, b, c]);
                self.out.push(format_args!(", 0x{lut:02x}"));
            }
            Inst::Dp4a { a_ty, b_ty, dst, a, b, c } => {
                self.text("dp4a");
                self.dot(a_ty.name());
                self.dot(b_ty.name());
                self.operands(dst, &[a, b, c]);
            }
            Inst::Setp { cmp, combine, ty, ftz, dst, dst_not, a, b } => {
                self.text("setp");
                self.compare(cmp, combine, ftz);
                self.dot(ty.name());
                self.text(" ");
                self.pair(dst, dst_not);
                self.comma(a);
                self.comma(b);
                self.combined(combine);
            }
            Inst::Set { cmp, combine, dst_ty, ty, ftz, dst, a, b } => {
                self.text("set");
                self.compare(cmp, combine, ftz);
                self.dot(dst_ty.name());
                self.dot(ty.name());
                self.operands(dst, &[a, b]);
                self.combined(combine);
            }
            Inst::Selp { ty, dst, a, b, pred } => {
                self.arith("selp", &Modifiers::NONE, ty);
                self.operands(dst, &[a, b, pred.into()]);
            }
            Inst::Slct { ty, c_ty, ftz, dst, a, b, c } => {
                self.text(if ftz { "slct.ftz" } else { "slct" });
                self.dot(ty.name());
                self.dot(c_ty.name());
                self.operands(dst, &[a, b, c]);
            }
            Inst::Mov { ty, dst, src } => {
                self.arith("mov", &Modifiers::NONE, ty);
                self.operands(dst, &[src]);
            }
            Inst::Pack { ty, dst, ref parts } => {
                self.arith("mov", &Modifiers::NONE, ty);
                self.operands(dst, &[]);
                self.text(", ");
                self.braced(parts, Self::operand);
            }
            Inst::Unpack { ty, ref dsts, src } => {
                self.arith("mov", &Modifiers::NONE, ty);
                self.text(" ");
                self.braced(dsts, Self::or_sink);
                self.comma(src);
            }
            Inst::PredBinary { op, dst, a, b } => {
                self.arith(op.name(), &Modifiers::NONE, ScalarType::Pred);
                self.operands(dst, &[a.into(), b.into()]);
            }
            Inst::PredNot { dst, a } => {
                self.text("not.pred");
                self.operands(dst, &[a.into()]);
            }
            Inst::PredMov { dst, a } => {
                self.text("mov.pred");
                self.operands(dst, &[a]);
            }
            Inst::Cvt { to, from, ref mods, dst, a, b } => {
                self.arith("cvt", mods, to);
                self.dot(from.name());
                self.operands(dst, &[a]);
                if let Some(b) = b {
                    self.comma(b);
                }
            }
            Inst::Cvta { to_space, space, ty, dst, src } => {
                self.text(if to_space { "cvta.to" } else { "cvta" });
                self.space(space);
                self.dot(ty.name());
                self.operands(dst, &[src]);
            }
            Inst::Isspacep { space, dst, a } => {
                self.text("isspacep");
                self.space(space);
                self.operands(dst, &[a]);
            }
            Inst::Ld { space, ty, ordering, ref hints, non_coherent, ref dsts, addr } => {
                self.text("ld");
                self.access(space, ordering, hints, non_coherent, dsts.len(), ty);
                self.text(" ");
                self.vector(dsts, Self::or_sink);
                self.text(", ");
                self.address(addr);
                self.policy(hints.policy);
            }
            Inst::St { space, ty, ordering, ref hints, ref srcs, addr } => {
                self.text("st");
                self.access(space, ordering, hints, false, srcs.len(), ty);
                self.text(" ");
                self.address(addr);
                self.text(", ");
                self.vector(srcs, Self::operand);
                self.policy(hints.policy);
            }
            Inst::Prefetch { space, level, addr } => {
                self.text("prefetch");
                self.space(space);
                self.dot(level.name());
                self.text(" ");
                self.address(addr);
            }
            Inst::Atom { op, space, ty, ordering, noftz, dst, addr, b, c, policy } => {
                self.text(if dst.is_some() { "atom" } else { "red" });
                self.ordering(ordering);
                self.space(space);
                self.dot(op.name());
                if noftz {
                    self.text(".noftz");
                }
                if policy.is_some() {
                    self.text(".L2::cache_hint");
                }
                self.dot(ty.name());
                self.text(" ");
                if let Some(dst) = dst {
                    self.reg(dst);
                    self.text(", ");
                }
                self.address(addr);
                self.comma(b);
                if let Some(c) = c {
                    self.comma(c);
                }
                self.policy(policy);
            }
            Inst::Shfl { .. }
            | Inst::Vote { .. }
            | Inst::Match { .. }
            | Inst::Redux { .. }
            | Inst::Activemask { .. }
            | Inst::Elect { .. }
            | Inst::Barrier { .. }
            | Inst::WarpBarrier { .. }
            | Inst::Fence { .. }
            | Inst::Nanosleep { .. }
            | Inst::Call { .. }
            | Inst::Brkpt
            | Inst::Trap => self.collective(inst),
            Inst::Dp2a { high, a_ty, b_ty, dst, a, b, c } => {
                self.text(if high { "dp2a.hi" } else { "dp2a.lo" });
                self.dot(a_ty.name());
                self.dot(b_ty.name());
                self.operands(dst, &[a, b, c]);
            }
            Inst::Video { form, dst, a, b, c } => self.video(&form, dst, [a, b, c]),
            Inst::Lop3Pred { op, dst, pred, a, b, c, lut, q } => {
                self.text("lop3");
                self.dot(op.name());
                self.text(".b32 ");
                self.or_sink(dst);
                self.text("|");
                self.reg(pred);
                for source in [a, b, c] {
                    self.comma(source);
                }
                self.out.push(format_args!(", 0x{lut:02x}, "));
                self.predicate(q);
            }
            Inst::Fns { dst, mask, base, offset } => {
                self.text("fns.b32");
                self.operands(dst, &[mask, base, offset]);
            }
            Inst::MinMax3 { max, abs, ty, ref mods, dst, a, b, c } => {
                self.text(if max { "max" } else { "min" });
                self.modifiers(mods, ty);
                self.text(if abs { ".abs" } else { "" });
                self.dot(ty.name());
                self.operands(dst, &[a, b, c]);
            }
            Inst::Mixed { op, narrow, ref mods, dst, a, b, c } => {
                self.arith(op.name(), mods, ScalarType::F32);
                self.dot(narrow.name());
                self.operands(dst, &[a]);
                if let Some(b) = b {
                    self.comma(b);
                }
                self.comma(c);
            }
            Inst::CvtStochastic { to, from, ref mods, dst, ref srcs, bits } => {
                self.text("cvt.rs");
                self.modifiers(mods, ScalarType::F16x2);
                self.dot(to.name());
                self.dot(from.name());
                self.operands(dst, &[]);
                self.text(", ");
                match srcs.as_slice() {
                    [a, b] => {
                        self.operand(*a);
                        self.comma(*b);
                    }
                    _ => self.braced(srcs, Self::operand),
                }
                self.comma(bits);
            }
            Inst::CvtPack { to, dst, a, b, c } => {
                self.text("cvt.pack.sat");
                self.dot(to.name());
                self.text(if c.is_some() { ".s32.b32" } else { ".s32" });
                self.operands(dst, &[a, b]);
                if let Some(c) = c {
                    self.comma(c);
                }
            }
            Inst::Ldu { space, ty, ref dsts, addr } => {
                self.text("ldu");
                self.access(space, Ordering::WEAK, &CacheHints::NONE, false, dsts.len(), ty);
                self.text(" ");
                self.vector(dsts, Self::or_sink);
                self.text(", ");
                self.address(addr);
            }
            Inst::AtomVector { op, space, ty, ordering, noftz, ref dsts, addr, ref srcs, policy } => {
                self.text(if dsts.is_some() { "atom" } else { "red" });
                self.ordering(ordering);
                self.space(space);
                self.dot(op.name());
                self.text(if noftz { ".noftz" } else { "" });
                self.text(if policy.is_some() { ".L2::cache_hint" } else { "" });
                self.out.push(format_args!(".v{}", srcs.len()));
                self.dot(ty.name());
                self.text(" ");
                if let Some(dsts) = dsts {
                    self.braced(dsts, Self::or_sink);
                    self.text(", ");
                }
                self.address(addr);
                self.text(", ");
                self.braced(srcs, Self::operand);
                self.policy(policy);
            }
            Inst::Mma(ref m) => self.mma(m),
            Inst::LdMatrix { tiles, space, ref dsts, addr } => self.load_matrix(tiles, space, dsts, addr),
            Inst::StMatrix { tiles, space, addr, ref srcs } => self.store_matrix(tiles, space, addr, srcs),
            Inst::MovMatrix { dst, a } => {
                self.text("movmatrix.sync.aligned.m8n8.trans.b16");
                self.operands(dst, &[a]);
            }
            Inst::Wgmma(ref m) => self.wgmma(m),
            Inst::WmmaLoad { ref tile, ref dsts } => self.wmma_load(tile, dsts),
            Inst::WmmaStore { ref tile, ref srcs } => self.wmma_store(tile, srcs),
            Inst::Wmma(ref m) => self.wmma(m),
            Inst::WgmmaFence => self.text("wgmma.fence.sync.aligned"),
            Inst::WgmmaCommit => self.text("wgmma.commit_group.sync.aligned"),
            Inst::WgmmaWait { pending } => {
                self.out.push(format_args!("wgmma.wait_group.sync.aligned {pending}"));
            }
            Inst::Tcgen05(ref t) => self.tcgen05(t),
            Inst::CpAsync { .. }
            | Inst::CpAsyncCommit
            | Inst::CpAsyncWait { .. }
            | Inst::CpAsyncArrive { .. }
            | Inst::MbarrierInit { .. }
            | Inst::MbarrierInval { .. }
            | Inst::MbarrierArrive { .. }
            | Inst::MbarrierWait { .. }
            | Inst::MbarrierTx { .. }
            | Inst::MbarrierPendingCount { .. }
            | Inst::BulkCopy(_)
            | Inst::BulkReduce(_)
            | Inst::BulkPrefetch { .. }
            | Inst::TensorCopy(_)
            | Inst::BulkCommit
            | Inst::BulkWait { .. }
            | Inst::StBulk { .. }
            | Inst::StAsync { .. }
            | Inst::RedAsync { .. }
            | Inst::TensormapReplace { .. }
            | Inst::TensormapCopyFence { .. } => self.asynchronous(inst),
            Inst::PrefetchUniform { .. }
            | Inst::PrefetchTensormap { .. }
            | Inst::Discard { .. }
            | Inst::ApplyPriority { .. }
            | Inst::CreatePolicy { .. }
            | Inst::Alloca { .. }
            | Inst::StackSave { .. }
            | Inst::StackRestore { .. }
            | Inst::PmEvent { .. }
            | Inst::SetMaxNreg { .. }
            | Inst::ClusterBarrier { .. }
            | Inst::Mapa { .. }
            | Inst::GetCtaRank { .. }
            | Inst::FenceRestricted { .. }
            | Inst::ProxyFence(_)
            | Inst::MbarrierInitFence
            | Inst::GridDepControl { .. } => self.cluster(inst),
            Inst::Opaque(ref o) => {
                self.text(&o.opcode);
                if !o.operands.is_empty() {
                    self.text(" ");
                }
                for piece in &o.operands {
                    match piece {
                        Piece::Text(text) => self.text(text),
                        Piece::Reg(reg) => self.reg(*reg),
                        Piece::Symbol(symbol) => self.symbol(*symbol),
                    }
                }
            }
        }
    }

    /// Warp-wide instructions, barriers and what else has no data type rules of its own.
    fn collective(&mut self, inst: &Inst) {
        match *inst {
            Inst::Shfl { mode, dst, pred, a, b, c, mask } => {
                self.text("shfl.sync");
                self.dot(mode.name());
                self.text(".b32 ");
                self.pair(dst, pred);
                self.comma(a);
                self.comma(b);
                self.comma_mask(c);
                self.comma_mask(mask);
            }
            Inst::Vote { mode, dst, src, mask } => {
                self.text("vote.sync");
                self.dot(mode.name());
                self.text(if mode == VoteMode::Ballot { ".b32 " } else { ".pred " });
                self.reg(dst);
                self.text(", ");
                self.predicate(src);
                self.comma_mask(mask);
            }
            Inst::Match { all, ty, dst, pred, a, mask } => {
                self.text(if all { "match.all.sync" } else { "match.any.sync" });
                self.dot(ty.name());
                self.text(" ");
                self.pair(dst, pred);
                self.comma(a);
                self.comma_mask(mask);
            }
            Inst::Redux { op, abs, nan, ty, dst, a, mask } => {
                self.text("redux.sync");
                self.dot(op.name());
                self.text(if abs { ".abs" } else { "" });
                self.text(if nan { ".NaN" } else { "" });
                self.dot(ty.name());
                self.operands(dst, &[a]);
                self.comma_mask(mask);
            }
            Inst::Activemask { dst } => {
                self.text("activemask.b32");
                self.operands(dst, &[]);
            }
            Inst::Elect { dst, pred, mask } => {
                self.text("elect.sync ");
                self.or_sink(dst);
                self.text("|");
                self.reg(pred);
                self.comma_mask(mask);
            }
            Inst::Barrier { ref kind, aligned, id, count } => self.barrier(kind, aligned, id, count),
            Inst::WarpBarrier { mask } => {
                self.text("bar.warp.sync ");
                self.mask(mask);
            }
            Inst::Fence { semantics, scope } => {
                self.text("fence");
                self.dot(semantics.name());
                self.dot(scope.name());
            }
            Inst::Nanosleep { duration } => {
                self.text("nanosleep.u32 ");
                self.operand(duration);
            }
            Inst::Call { ref callee, uniform, ref returns, ref args } => {
                self.call(callee, uniform, returns, args);
            }
            Inst::Brkpt => self.text("brkpt"),
            Inst::Trap => self.text("trap"),
            _ => {}
        }
    }

    fn barrier(&mut self, kind: &BarrierKind, aligned: bool, id: Operand, count: Option<Operand>) {
        self.text(if aligned { "bar" } else { "barrier" });
        match *kind {
            BarrierKind::Sync => self.text(".sync "),
            BarrierKind::Arrive => self.text(".arrive "),
            BarrierKind::Reduce { op, dst, .. } => {
                self.text(".red");
                self.dot(op.name());
                self.text(if op == BarRedOp::Popc { ".u32 " } else { ".pred " });
                self.reg(dst);
                self.text(", ");
            }
        }
        self.operand(id);
        if let Some(count) = count {
            self.comma(count);
        }
        if let BarrierKind::Reduce { src, .. } = *kind {
            self.text(", ");
            self.predicate(src);
        }
    }

    fn text(&mut self, text: &str) {
        self.out.text.push_str(text);
    }

    fn dot(&mut self, text: &str) {
        self.out.text.push('.');
        self.out.text.push_str(text);
    }

    fn video(&mut self, form: &VideoForm, dst: Reg, [a, b, c]: [Operand; 3]) {
        let VideoForm { op, bytes, types, saturate, accumulate, mask, select } = *form;
        let plain = VideoForm::plain(op, bytes, types);
        let letter = if bytes { ".b" } else { ".h" };
        self.text(op.name());
        self.text(if bytes { "4" } else { "2" });
        types.iter().for_each(|ty| self.dot(ty.name()));
        self.text(if saturate { ".sat" } else { "" });
        self.text(if accumulate { ".add" } else { "" });
        self.text(" ");
        self.reg(dst);
        if mask != plain.mask {
            self.text(letter);
            for lane in (0..form.lanes()).rev().filter(|lane| mask >> lane & 1 != 0) {
                self.out.push(format_args!("{lane}"));
            }
        }
        for (operand, side) in [a, b].into_iter().zip(0..) {
            self.comma(operand);
            if select[side] != plain.select[side] {
                self.text(letter);
                select[side][..form.lanes()]
                    .iter()
                    .rev()
                    .for_each(|lane| self.out.push(format_args!("{lane}")));
            }
        }
        self.comma(c);
    }

    /// `name.mods.ty`
    fn arith(&mut self, name: &str, mods: &Modifiers, ty: ScalarType) {
        self.text(name);
        self.modifiers(mods, ty);
        self.dot(ty.name());
    }

    /// `.mods` as they stand before the type `ty`.
    fn modifiers(&mut self, mods: &Modifiers, ty: ScalarType) {
        if let Some(rounding) = mods.rounding {
            self.dot(rounding.name());
        }
        let Modifiers { rounding: _, approx, full, ftz, sat, relu, nan, xorsign_abs, satfinite, oob } = *mods;
        // `cvt` to 8-bit floats wants `.satfinite` before `.relu`, to the 16-bit ones after it.
        let narrow = matches!(
            ty,
            ScalarType::E4M3x2
                | ScalarType::E5M2x2
                | ScalarType::E2M1x2
                | ScalarType::E2M3x2
                | ScalarType::E3M2x2
        );
        for (set, text) in [
            (approx, ".approx"),
            (full, ".full"),
            (ftz, ".ftz"),
            (nan, ".NaN"),
            (oob, ".oob"),
            (xorsign_abs, ".xorsign.abs"),
            (sat, ".sat"),
            (satfinite && narrow, ".satfinite"),
            (relu, ".relu"),
            (satfinite && !narrow, ".satfinite"),
        ] {
            if set {
                self.text(text);
            }
        }
    }

    /// ` dst, a, b, ...`
    fn operands(&mut self, dst: Reg, sources: &[Operand]) {
        self.text(" ");
        self.reg(dst);
        for source in sources {
            self.comma(*source);
        }
    }

    fn comma(&mut self, operand: Operand) {
        self.text(", ");
        self.operand(operand);
    }

    /// `, operand`, with a literal in hexadecimal.
    fn comma_mask(&mut self, operand: Operand) {
        self.text(", ");
        self.mask(operand);
    }

    /// An operand whose literal is a set of bits.
    fn mask(&mut self, operand: Operand) {
        match operand {
            Operand::Imm(Imm::Int(v @ 10..)) => self.out.push(format_args!("0x{v:x}")),
            _ => self.operand(operand),
        }
    }

    pub(super) fn operand(&mut self, operand: Operand) {
        match operand {
            Operand::Reg(reg) => self.reg(reg),
            Operand::Imm(Imm::Int(v)) => self.out.push(format_args!("{v}")),
            Operand::Imm(Imm::F32(bits)) => self.out.push(format_args!("0f{bits:08X}")),
            Operand::Imm(Imm::F64(bits)) => self.out.push(format_args!("0d{bits:016X}")),
            Operand::Special(special) => self.special(special),
            Operand::Symbol(symbol, offset) => {
                self.symbol(symbol);
                self.offset(offset);
            }
        }
    }

    fn special(&mut self, special: SpecialReg) {
        let (name, axis) = match special {
            SpecialReg::Plain(plain) => return self.out.push(format_args!("%{plain}")),
            SpecialReg::Tid(axis) => ("tid", axis),
            SpecialReg::Ntid(axis) => ("ntid", axis),
            SpecialReg::Ctaid(axis) => ("ctaid", axis),
            SpecialReg::Nctaid(axis) => ("nctaid", axis),
            SpecialReg::ClusterCtaid(axis) => ("cluster_ctaid", axis),
            SpecialReg::ClusterNctaid(axis) => ("cluster_nctaid", axis),
            SpecialReg::ClusterId(axis) => ("clusterid", axis),
            SpecialReg::NclusterId(axis) => ("nclusterid", axis),
        };
        let axis = match axis {
            Axis::X => 'x',
            Axis::Y => 'y',
            Axis::Z => 'z',
        };
        self.out.push(format_args!("%{name}.{axis}"));
    }

    /// `+n` or `+-n`; the assembler has no subtraction here.
    fn offset(&mut self, offset: i64) {
        if offset != 0 {
            self.out.push(format_args!("+{offset}"));
        }
    }

    fn address(&mut self, address: Address) {
        self.text("[");
        self.address_inside(address);
        self.text("]");
    }

    /// `base+offset`
    fn address_inside(&mut self, Address { base, offset }: Address) {
        match base {
            AddressBase::Reg(reg) => self.reg(reg),
            AddressBase::Symbol(symbol) => self.symbol(symbol),
            AddressBase::Absolute => {
                self.out.push(format_args!("{offset}"));
                return;
            }
        }
        self.offset(offset);
    }

    /// `dst` or `dst|second`
    fn pair(&mut self, dst: Reg, second: Option<Reg>) {
        self.reg(dst);
        if let Some(second) = second {
            self.text("|");
            self.reg(second);
        }
    }

    fn or_sink(&mut self, reg: Option<Reg>) {
        match reg {
            Some(reg) => self.reg(reg),
            None => self.text("_"),
        }
    }

    fn predicate(&mut self, PredUse { reg, negated }: PredUse) {
        if negated {
            self.text("!");
        }
        self.reg(reg);
    }

    fn braced<T: Copy>(&mut self, items: &[T], each: impl Fn(&mut Self, T)) {
        self.text("{");
        for (i, item) in items.iter().enumerate() {
            if i > 0 {
                self.text(", ");
            }
            each(self, *item);
        }
        self.text("}");
    }

    /// One item stands alone, several in braces.
    fn vector<T: Copy>(&mut self, items: &[T], each: impl Fn(&mut Self, T)) {
        match items {
            [item] => each(self, *item),
            _ => self.braced(items, each),
        }
    }

    /// `.cmp{.bool}{.ftz}`
    fn compare(&mut self, cmp: CmpOp, combine: Option<(BoolOp, PredUse)>, ftz: bool) {
        self.dot(cmp.name());
        if let Some((op, _)) = combine {
            self.dot(op.name());
        }
        if ftz {
            self.text(".ftz");
        }
    }

    fn combined(&mut self, combine: Option<(BoolOp, PredUse)>) {
        if let Some((_, pred)) = combine {
            self.text(", ");
            self.predicate(pred);
        }
    }

    /// `.space`; the generic space is written as nothing.
    fn space(&mut self, space: StateSpace) {
        if space != StateSpace::Generic {
            self.dot(space.name());
        }
    }

    fn ordering(&mut self, Ordering { semantics, scope }: Ordering) {
        match semantics {
            Semantics::Weak => {}
            Semantics::Mmio => self.text(".mmio.relaxed"),
            _ => self.dot(semantics.name()),
        }
        if let Some(scope) = scope {
            self.dot(scope.name());
        }
    }

    /// Everything of a load or store between the opcode and its operands.
    fn access(
        &mut self,
        space: StateSpace,
        ordering: Ordering,
        hints: &CacheHints,
        non_coherent: bool,
        width: usize,
        ty: ScalarType,
    ) {
        self.ordering(ordering);
        self.space(space);
        if hints.op != CacheOp::Default {
            self.dot(hints.op.name());
        }
        if non_coherent {
            self.text(".nc");
        }
        if hints.l1 != L1Eviction::Default {
            self.dot(hints.l1.name());
        }
        if hints.l2 != L2Eviction::Default {
            self.dot(hints.l2.name());
        }
        if hints.policy.is_some() {
            self.text(".L2::cache_hint");
        }
        if hints.l2_prefetch != L2Prefetch::Default {
            self.dot(hints.l2_prefetch.name());
        }
        if width != 1 {
            self.out.push(format_args!(".v{width}"));
        }
        self.dot(ty.name());
    }

    fn policy(&mut self, policy: Option<Reg>) {
        if let Some(policy) = policy {
            self.text(", ");
            self.reg(policy);
        }
    }
}
