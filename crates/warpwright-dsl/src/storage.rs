//! How elements lie in memory: the instructions behind vector loads and stores of every dtype.
//!
//! Sub-word elements travel in 32-bit words, at most four per instruction. A bfloat16 is the upper half of an f32, so
//! reading one is a shift or a mask; writing uses the packing conversion from sm_80 and integer rounding before. 8-bit
//! floats are read as pairs of halves and written in pairs, saturating; targets before sm_89 cannot. A signed byte can be
//! read and written through f32, too: writing rounds to nearest even and saturates, and makes 0 of NaN.

use warpwright_ptx::{
    Address, CacheHints, DType, Inst, Modifiers, Operand, Ordering, RegKind, Rounding, ScalarType, StateSpace,
};

use crate::context::K;
use crate::error::IssueKind;
use crate::lanes::Lanes;
use crate::mem::{Fill, Guard};
use crate::reg::{F32, F64, Number, Reg, Scalar, Source, U32};

/// Bytes of the widest load and store of every target.
pub const VECTOR_BYTES: u32 = 16;

/// Most elements of one `load` or `store`.
const MAX_WIDTH: u32 = 64;

/// `cvt` to `bf16` and to packed halves exists from here.
const PACKED_CVT_SM: u32 = 80;

/// `cvt` of packed 8-bit floats exists from here.
const FLOAT8_SM: u32 = 89;

/// One access: where, and how.
#[derive(Clone, Copy)]
pub(crate) struct Place<'k> {
    pub(crate) k: K<'k>,
    pub(crate) space: StateSpace,
    pub(crate) address: Address,
    pub(crate) dtype: DType,
    pub(crate) hints: CacheHints,
    pub(crate) non_coherent: bool,
    pub(crate) guard: Option<Guard>,
}

impl<'k> Place<'k> {
    fn valid(&self, register: ScalarType, width: u32) -> bool {
        let through_f32 = register == ScalarType::F32;
        let ok = match self.dtype {
            DType::F32 | DType::F16 | DType::BF16 => register.is_float(),
            DType::F8E4M3 | DType::F8E5M2 => register.is_float(),
            DType::F64 => register.is_float() && !through_f32,
            DType::I8 if through_f32 => true,
            DType::U64 | DType::I64 => register.is_integer() && register.bits() == 64,
            _ => register.is_integer() && register.bits() == 32,
        };
        if !ok {
            self.k.issue(IssueKind::Access { dtype: self.dtype, register });
        }
        let width_ok = width.is_power_of_two() && width <= MAX_WIDTH;
        if !width_ok {
            self.k.issue(IssueKind::Width { width });
        }
        let got = self.k.target().sm;
        let target_ok = !self.dtype.is_float8() || got >= FLOAT8_SM;
        if !target_ok {
            let what = "an access to 8-bit floating-point numbers";
            self.k.issue(IssueKind::Target { what, needs: FLOAT8_SM, got });
        }
        ok && width_ok && target_ok
    }

    fn ld<T: Scalar>(&self, ty: ScalarType, at: usize, count: usize) -> Vec<Reg<'k, T>> {
        let regs: Vec<Reg<'k, T>> = match self.guard {
            None => (0..count).map(|_| self.k.fresh()).collect(),
            Some(guard) => (0..count).map(|_| self.filled(guard.fill)).collect(),
        };
        self.emit(Inst::Ld {
            space: self.space,
            ty,
            ordering: Ordering::WEAK,
            hints: self.hints,
            non_coherent: self.non_coherent,
            dsts: regs.iter().map(|r| Some(r.id())).collect(),
            addr: self.address_at(at),
        });
        regs
    }

    fn st<T: Scalar>(&self, ty: ScalarType, at: usize, regs: &[Reg<'k, T>]) {
        self.emit(Inst::St {
            space: self.space,
            ty,
            ordering: Ordering::WEAK,
            hints: self.hints,
            srcs: regs.iter().map(|r| Operand::Reg(r.id())).collect(),
            addr: self.address_at(at),
        });
    }

    fn emit(&self, inst: Inst) {
        self.k.rec().push(self.guard.map(|g| g.pred), inst);
    }

    /// A variable for a load that may not be made.
    fn filled<T: Scalar>(&self, fill: Fill) -> Reg<'k, T> {
        let variable = Reg::from_id(self.k, self.k.rec().new_reg(T::REGISTER, RegKind::Variable));
        let src = match (fill, self.dtype) {
            (Fill::MinusInfinity, DType::F32) => f32::NEG_INFINITY.literal(),
            (Fill::MinusInfinity, DType::F64) => f64::NEG_INFINITY.literal(),
            (Fill::MinusInfinity, DType::BF16) => Operand::int(0xff80_ff80),
            (Fill::MinusInfinity, DType::F16) => Operand::int(0xfc00_fc00),
            (Fill::MinusInfinity, DType::F8E4M3) => Operand::int(0xfefe_fefe),
            (Fill::MinusInfinity, DType::F8E5M2) => Operand::int(0xfcfc_fcfc),
            _ if T::TYPE == ScalarType::F32 => 0f32.literal(),
            _ if T::TYPE == ScalarType::F64 => 0f64.literal(),
            _ => Operand::int(0),
        };
        self.k.emit(Inst::Mov { ty: T::REGISTER, dst: variable.id(), src });
        variable
    }

    fn address_at(&self, at: usize) -> Address {
        Address {
            offset: self.address.offset.wrapping_add(i64::try_from(at).unwrap_or(i64::MAX)),
            ..self.address
        }
    }

    /// `count` registers that each hold one unit of `bytes` bytes, in instructions of at most 16 bytes.
    fn ld_units<T: Scalar>(&self, ty: ScalarType, bytes: usize, count: usize) -> Vec<Reg<'k, T>> {
        let step = (VECTOR_BYTES as usize / bytes).min(count);
        (0..count).step_by(step).flat_map(|first| self.ld(ty, first * bytes, step)).collect()
    }

    fn st_units<T: Scalar>(&self, ty: ScalarType, bytes: usize, regs: &[Reg<'k, T>]) {
        let step = (VECTOR_BYTES as usize / bytes).min(regs.len());
        for (chunk, part) in regs.chunks(step).enumerate() {
            self.st(ty, chunk * step * bytes, part);
        }
    }

    /// Words that hold `width` sub-word elements. A lone part of a word is loaded with its own width, zero-extended:
    /// loads may write a wider register.
    fn ld_words(&self, width: usize) -> Vec<U32<'k>> {
        match self.dtype.bytes() * width {
            1 => self.ld(ScalarType::U8, 0, 1),
            2 => self.ld(ScalarType::U16, 0, 1),
            total => self.ld_units(ScalarType::B32, 4, total / 4),
        }
    }

    fn st_words(&self, width: usize, words: &[U32<'k>]) {
        match self.dtype.bytes() * width {
            1 => self.st(ScalarType::U8, 0, words),
            2 => self.st(ScalarType::U16, 0, words),
            _ => self.st_units(ScalarType::B32, 4, words),
        }
    }
}

pub(crate) fn load<'k, A: Number>(place: Place<'k>, width: u32) -> Lanes<'k, A> {
    if !place.valid(A::TYPE, width) {
        return (0..width.clamp(1, MAX_WIDTH)).map(|_| place.k.fresh()).collect();
    }
    let count = width as usize;
    match place.dtype {
        DType::F32 => Lanes::from(place.ld_units::<f32>(ScalarType::F32, 4, count)).convert(),
        DType::F64 => Lanes::from(place.ld_units::<f64>(ScalarType::F64, 8, count)).convert(),
        DType::U32 | DType::I32 => place.ld_units::<A>(ScalarType::B32, 4, count).into(),
        DType::U64 | DType::I64 => place.ld_units::<A>(ScalarType::B64, 8, count).into(),
        DType::BF16 => {
            let words = place.ld_words(count);
            words.into_iter().flat_map(widen_bf16).take(count).map(Reg::convert).collect()
        }
        DType::F16 => {
            let words = place.ld_words(count);
            words.into_iter().flat_map(|w| widen_f16(w, count)).map(Reg::convert).collect()
        }
        DType::F8E4M3 | DType::F8E5M2 => {
            let words = place.ld_words(count);
            words.into_iter().flat_map(|w| widen_float8(w, place.dtype, count)).map(Reg::convert).collect()
        }
        DType::U8 | DType::I8 | DType::U16 | DType::I16 => {
            let words = place.ld_words(count);
            let bits = (place.dtype.bytes() * 8) as u32;
            let signed = matches!(place.dtype, DType::I8 | DType::I16);
            let per_word = (32 / bits).min(width);
            words
                .into_iter()
                .flat_map(|w| (0..per_word).map(move |i| integer_field(w, i * bits, bits, signed)))
                .map(|field| if signed { field.to_i32().convert() } else { field.convert() })
                .collect()
        }
    }
}

/// The words of `width` 16-bit elements; a single one has a word to itself.
pub(crate) fn load_halves<'k>(place: Place<'k>, width: u32) -> Vec<U32<'k>> {
    if place.valid(ScalarType::F32, width) { place.ld_words(width as usize) } else { Vec::new() }
}

/// Stores what [`load_halves`] loads.
pub(crate) fn store_halves<'k>(place: Place<'k>, width: usize, words: &Lanes<'k, u32>) {
    if place.valid(ScalarType::F32, u32::try_from(width).unwrap_or(0)) {
        place.st_words(width, words.as_slice());
    }
}

/// Elements rounded to a 16-bit type, two to a word.
pub(crate) fn pack<'k, A: Number>(k: K<'k>, dtype: DType, lanes: &Lanes<'k, A>) -> Lanes<'k, u32> {
    if dtype == DType::F16 {
        return lanes.as_slice().chunks(2).map(|pair| narrow_f16(k, pair)).collect();
    }
    let values: Vec<F32<'k>> = lanes.iter().map(single_rounded_to_odd).collect();
    values.chunks(2).map(|pair| narrow_bf16(k, pair)).collect()
}

/// The elements of a word, lower half first.
pub(crate) fn widen(word: U32<'_>, dtype: DType) -> [F32<'_>; 2] {
    let mut halves = match dtype {
        DType::BF16 => widen_bf16(word).collect(),
        _ => widen_f16(word, 2),
    }
    .into_iter();
    std::array::from_fn(|_| halves.next().unwrap_or_else(|| word.k().fresh()))
}

pub(crate) fn store<'k, A: Number>(place: Place<'k>, lanes: &Lanes<'k, A>) {
    let width = u32::try_from(lanes.len()).unwrap_or(0);
    if !place.valid(A::TYPE, width) {
        return;
    }
    let k = place.k;
    match place.dtype {
        DType::F32 => place.st_units(ScalarType::F32, 4, lanes.convert::<f32>().as_slice()),
        DType::F64 => place.st_units(ScalarType::F64, 8, lanes.convert::<f64>().as_slice()),
        DType::U32 | DType::I32 => place.st_units(ScalarType::B32, 4, lanes.as_slice()),
        DType::U64 | DType::I64 => place.st_units(ScalarType::B64, 8, lanes.as_slice()),
        DType::F16 | DType::BF16 => {
            place.st_words(lanes.len(), pack(k, place.dtype, lanes).as_slice());
        }
        DType::F8E4M3 | DType::F8E5M2 => {
            let values: Vec<F32<'k>> = lanes.iter().map(single_rounded_to_odd).collect();
            let words: Vec<_> = values.chunks(4).map(|v| narrow_float8(k, place.dtype, v)).collect();
            place.st_words(lanes.len(), &words);
        }
        DType::U8 | DType::I8 => {
            let bytes: Vec<U32<'k>> = lanes.iter().map(byte).collect();
            let words: Vec<_> = bytes.chunks(4).map(|b| pack_bytes(k, b)).collect();
            place.st_words(lanes.len(), &words);
        }
        DType::U16 | DType::I16 => {
            let halves: Vec<U32<'k>> = lanes.iter().map(Reg::convert).collect();
            let words: Vec<_> = halves.chunks(2).map(|h| pack_halves(k, h)).collect();
            place.st_words(lanes.len(), &words);
        }
    }
}

/// Lower and upper bfloat16 of a word; the upper is not asked for if the word is half empty.
fn widen_bf16(word: U32<'_>) -> impl Iterator<Item = F32<'_>> {
    let mut half = 0;
    std::iter::from_fn(move || {
        half += 1;
        match half {
            1 => Some(F32::from_bits(word << 16)),
            2 => Some(F32::from_bits(word & 0xffff_0000)),
            _ => None,
        }
    })
}

/// The elements of a word, at most `count`.
fn widen_float8(word: U32<'_>, dtype: DType, count: usize) -> Vec<F32<'_>> {
    let k = word.k();
    let count = count.min(4);
    let pairs = [k.fresh::<u16>(), k.fresh()];
    k.emit(Inst::Unpack {
        ty: ScalarType::B32,
        dsts: vec![Some(pairs[0].id()), (count > 2).then(|| pairs[1].id())],
        src: word.operand(),
    });
    let halves = |pair| widen_f16(float8_to_f16(pair, dtype), count);
    pairs.into_iter().take(count.div_ceil(2)).flat_map(halves).collect()
}

/// The two elements of the lower half of a word as `f16`, which holds them exactly; `None` where no conversion exists.
pub(crate) fn lower_float8(word: U32<'_>, dtype: DType) -> Option<U32<'_>> {
    let k = word.k();
    (k.target().sm >= FLOAT8_SM).then(|| {
        let pair = k.fresh::<u16>();
        k.emit(Inst::Unpack { ty: ScalarType::B32, dsts: vec![Some(pair.id()), None], src: word.operand() });
        float8_to_f16(pair, dtype)
    })
}

/// The elements of both halves of a word, likewise.
pub(crate) fn both_float8(word: U32<'_>, dtype: DType) -> Option<[U32<'_>; 2]> {
    let k = word.k();
    (k.target().sm >= FLOAT8_SM).then(|| {
        let pairs = [k.fresh::<u16>(), k.fresh()];
        let dsts = pairs.iter().map(|pair| Some(pair.id())).collect();
        k.emit(Inst::Unpack { ty: ScalarType::B32, dsts, src: word.operand() });
        pairs.map(|pair| float8_to_f16(pair, dtype))
    })
}

/// A pair of 8-bit floats as one of `f16`.
fn float8_to_f16(pair: Reg<'_, u16>, dtype: DType) -> U32<'_> {
    let dst = pair.k().fresh::<u32>();
    pair.k().emit(Inst::Cvt {
        to: ScalarType::F16x2,
        from: float8_pair(dtype),
        mods: Modifiers::RN,
        dst: dst.id(),
        a: pair.operand(),
        b: None,
    });
    dst
}

/// The type of a pair of 8-bit floats.
const fn float8_pair(dtype: DType) -> ScalarType {
    match dtype {
        DType::F8E5M2 => ScalarType::E5M2x2,
        _ => ScalarType::E4M3x2,
    }
}

fn widen_f16(word: U32<'_>, count: usize) -> Vec<F32<'_>> {
    let k = word.k();
    let (low, high) = (k.fresh::<u16>(), k.fresh::<u16>());
    k.emit(Inst::Unpack {
        ty: ScalarType::B32,
        dsts: vec![Some(low.id()), (count > 1).then(|| high.id())],
        src: word.operand(),
    });
    let halves = [low, high];
    halves.into_iter().take(count).map(half_cvt).collect()
}

/// `cvt.f32.f16`
fn half_cvt(half: Reg<'_, u16>) -> F32<'_> {
    let dst = half.k().fresh::<f32>();
    half.k().emit(Inst::Cvt {
        to: ScalarType::F32,
        from: ScalarType::F16,
        mods: Modifiers::NONE,
        dst: dst.id(),
        a: half.operand(),
        b: None,
    });
    dst
}

fn integer_field(word: U32<'_>, pos: u32, len: u32, signed: bool) -> U32<'_> {
    if signed { word.to_i32().bit_field(pos, len).to_u32() } else { word.bit_field(pos, len) }
}

/// A register whose low byte is the value as an 8-bit integer: integers are truncated, f32 is rounded to nearest even and
/// saturates as a signed one.
fn byte<'k, A: Number>(value: Reg<'k, A>) -> U32<'k> {
    if A::TYPE != ScalarType::F32 {
        return value.convert();
    }
    let dst = value.k().fresh::<u32>();
    value.k().emit(Inst::Cvt {
        to: ScalarType::S8,
        from: ScalarType::F32,
        mods: Modifiers { rounding: Some(Rounding::Rni), ..Modifiers::NONE },
        dst: dst.id(),
        a: value.operand(),
        b: None,
    });
    dst
}

/// Up to four elements as 8-bit floats in one word, each saturated.
fn narrow_float8<'k>(k: K<'k>, dtype: DType, values: &[F32<'k>]) -> U32<'k> {
    let zero = Source::<f32>::operand(0.0f64);
    let mut parts: Vec<Operand> = Vec::new();
    for pair in values.chunks(2) {
        let dst = k.fresh::<u16>();
        // The first source goes to the upper byte.
        k.emit(Inst::Cvt {
            to: float8_pair(dtype),
            from: ScalarType::F32,
            mods: Modifiers { satfinite: true, ..Modifiers::RN },
            dst: dst.id(),
            a: pair.get(1).map_or(zero, |value| value.operand()),
            b: pair.first().map(|value| value.operand()),
        });
        parts.push(dst.operand());
    }
    while parts.len() < 2 {
        parts.push(k.lit(0u16).operand());
    }
    let dst = k.fresh::<u32>();
    k.emit(Inst::Pack { ty: ScalarType::B32, dst: dst.id(), parts });
    dst
}

/// Four bytes, or fewer, as one word. `chunks` never yields an empty slice; it would be a poison register.
fn pack_bytes<'k>(k: K<'k>, bytes: &[U32<'k>]) -> U32<'k> {
    match *bytes {
        [a, b, c, d] => a.permute(b, 0x0040).permute(c.permute(d, 0x0040), 0x5410),
        [a, b] => a.permute(b, 0x0040),
        [a, ..] => a,
        [] => k.fresh(),
    }
}

fn pack_halves<'k>(k: K<'k>, halves: &[U32<'k>]) -> U32<'k> {
    match *halves {
        [low, high] => low.permute(high, 0x5410),
        [low, ..] => low,
        [] => k.fresh(),
    }
}

/// The f32 that rounds to the bfloat16 or 8-bit float that `value` rounds to. From f64 it is rounded to odd, so that the
/// second rounding does not see a tie that the first one made.
fn single_rounded_to_odd<'k, A: Number>(value: Reg<'k, A>) -> F32<'k> {
    if A::TYPE != ScalarType::F64 {
        return value.convert();
    }
    let value: F64<'k> = value.retype();
    let truncated: F32<'k> = value.convert_rounded(Rounding::Rz);
    // NaN compares unequal too; its lowest bit may be set.
    let sticky = truncated.to_f64().ne(value).to_u32();
    F32::from_bits(truncated.to_bits() | sticky)
}

fn narrow_bf16<'k>(k: K<'k>, pair: &[F32<'k>]) -> U32<'k> {
    let (low, high) = match *pair {
        [low, high, ..] => (low, Some(high)),
        [low] => (low, None),
        [] => return k.fresh(),
    };
    if k.target().sm >= PACKED_CVT_SM {
        return packed_cvt(ScalarType::BF16x2, low, high);
    }
    let low = rounded_bf16(low);
    match high {
        Some(high) => low.permute(rounded_bf16(high), 0x7632),
        None => low >> 16,
    }
}

/// An f32 whose upper half is the nearest bfloat16, ties to even.
fn rounded_bf16(value: F32<'_>) -> U32<'_> {
    let bits = value.to_bits();
    let odd = bits.bit_field(16, 1);
    let rounded = bits + 0x7fff + odd;
    // Rounding could carry a NaN into infinity or zero.
    value.is_nan().select(0x7fff_ffff, rounded)
}

fn narrow_f16<'k, A: Number>(k: K<'k>, pair: &[Reg<'k, A>]) -> U32<'k> {
    if A::TYPE == ScalarType::F32 && k.target().sm >= PACKED_CVT_SM {
        match *pair {
            [low, high] => return packed_cvt(ScalarType::F16x2, low.retype(), Some(high.retype())),
            [low] => return packed_cvt(ScalarType::F16x2, low.retype(), None),
            _ => {}
        }
    }
    let mut parts: Vec<Operand> = pair
        .iter()
        .map(|value| {
            let dst = k.fresh::<u16>();
            k.emit(Inst::Cvt {
                to: ScalarType::F16,
                from: A::TYPE,
                mods: Modifiers::RN,
                dst: dst.id(),
                a: value.operand(),
                b: None,
            });
            dst.operand()
        })
        .collect();
    while parts.len() < 2 {
        parts.push(k.lit(0u16).operand());
    }
    let dst = k.fresh::<u32>();
    k.emit(Inst::Pack { ty: ScalarType::B32, dst: dst.id(), parts });
    dst
}

/// `cvt.rn.{bf16x2,f16x2}.f32`: the first source goes to the upper half.
fn packed_cvt<'k>(to: ScalarType, low: F32<'k>, high: Option<F32<'k>>) -> U32<'k> {
    let dst = low.k().fresh::<u32>();
    low.k().emit(Inst::Cvt {
        to,
        from: ScalarType::F32,
        mods: Modifiers::RN,
        dst: dst.id(),
        a: high.map_or(Source::<f32>::operand(0.0f64), Source::operand),
        b: Some(low.operand()),
    });
    dst
}
