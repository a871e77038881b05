//! Variables: shapes, dimensions, attributes and initializers.

use super::constant::Constant;
use super::names::{Binding, Meaning};
use super::operands::is_special;
use super::{MAX_VARIABLE, Parser, Read, rules};
use crate::module::*;
use crate::text::lex::{Kind, Token};
use crate::types::*;

/// The most dimensions of an array.
const MAX_DIMENSIONS: usize = 16;
/// The most bytes of zeros that an initializer leaves out before something that it gives.
const MAX_PADDING: u64 = 1 << 26;

/// The part of a declaration before its names.
pub(super) struct Shape<'a> {
    pub(super) ty: ScalarType,
    /// Elements of a vector (`.v4`); 1 for a scalar.
    pub(super) vector: u32,
    pub(super) align: u32,
    pub(super) pointer: Option<PointerAttr>,
    attributes: Attributes,
    at: Token<'a>,
}

/// The contents of `.attribute(...)`.
#[derive(Clone, Copy, Default)]
pub(super) struct Attributes {
    managed: bool,
    unified: Option<[u64; 2]>,
}

/// The dimensions of an array, vector elements included as the last one.
#[derive(Default)]
pub(super) struct Dimensions {
    /// Elements of each dimension; of the first one 0 if it is open.
    sizes: Vec<u64>,
    /// Whether the first dimension is `[]`.
    pub(super) open: bool,
    /// All elements; those of one row if the first dimension is open.
    pub(super) elements: u64,
}

/// An initializer under construction.
struct Initial {
    ty: ScalarType,
    value: Initializer,
    /// Zeros that are due before the next element.
    padding: u64,
}

impl<'a> Parser<'a> {
    /// `{.align n} {.attribute(..)} {.v2} .type {.ptr {.space} {.align n}}` in any order before a name.
    pub(super) fn shape(&mut self) -> Read<Shape<'a>> {
        let at = self.token;
        let (mut ty, mut align, mut pointer) = (None, None, None::<PointerAttr>);
        let (mut vector, mut attributes) = (1, Attributes::default());
        while self.token.kind == Kind::Dot {
            let dot = self.advance();
            match dot.text {
                "align" => {
                    let value_at = self.token;
                    let value = self.unsigned32()?;
                    if !value.is_power_of_two() {
                        let message = format!("alignment {value} is not a power of two");
                        return Err(self.fail(rules::NUMBER, value_at, message));
                    }
                    match &mut pointer {
                        Some(pointer) => pointer.align = Some(value),
                        None => align = Some(value),
                    }
                }
                "ptr" => pointer = Some(PointerAttr { space: StateSpace::Generic, align: None }),
                "v2" => vector = 2,
                "v4" => vector = 4,
                "attribute" => attributes = self.attributes()?,
                "texref" | "samplerref" | "surfref" => {
                    let message =
                        format!("texture and surface references such as {} are not read", dot.shown());
                    return Err(self.fail(rules::UNSUPPORTED, dot, message));
                }
                text => match (super::directives::space(text), ScalarType::from_name(text), &mut pointer) {
                    (Some(space), _, Some(pointer)) => pointer.space = space,
                    (_, Some(named), _) if ty.is_none() => ty = Some(named),
                    _ => return Err(self.unexpected_modifier(dot, "declaration")),
                },
            }
        }
        let Some(ty) = ty else {
            return Err(self.fail(rules::MODIFIER, at, "a declaration needs a type such as `.b32`"));
        };
        if vector * ty.bytes() > 16 || (vector > 1 && ty == ScalarType::Pred) {
            let message = format!("there is no vector of {vector} elements of .{ty}");
            return Err(self.fail(rules::MODIFIER, at, message));
        }
        let align = align.unwrap_or_else(|| vector * ty.bytes());
        Ok(Shape { ty, vector, align, pointer, attributes, at })
    }

    /// `(.managed, .unified(a, b))` behind `.attribute`.
    pub(super) fn attributes(&mut self) -> Read<Attributes> {
        let mut attributes = Attributes::default();
        self.expect(b'(')?;
        loop {
            if self.eat_dot("managed") {
                attributes.managed = true;
            } else if self.eat_dot("unified") {
                self.expect(b'(')?;
                let first = self.unsigned()?;
                self.expect(b',')?;
                attributes.unified = Some([first, self.unsigned()?]);
                self.expect(b')')?;
            } else {
                return Err(self.unexpected("`.managed` or `.unified`"));
            }
            if !self.eat(b',') {
                self.expect(b')')?;
                return Ok(attributes);
            }
        }
    }

    pub(super) fn unexpected_modifier(&mut self, at: Token<'a>, of: &str) -> super::Fail {
        self.fail(rules::MODIFIER, at, format!("{} does not belong in a {of}", at.shown()))
    }

    /// Refuses types that only instructions have.
    pub(super) fn storage_type(&mut self, shape: &Shape<'a>, what: &str) -> Read<()> {
        let only_instructions = !shape.ty.is_storage();
        if only_instructions || (shape.ty == ScalarType::Pred && what != "register") {
            let hint =
                if only_instructions { format!("; use `.{}`", shape.ty.to_bits()) } else { String::new() };
            let message = format!("there is no {what} of type `.{}`{hint}", shape.ty);
            return Err(self.fail(rules::MODIFIER, shape.at, message));
        }
        Ok(())
    }

    pub(super) fn declare(&mut self, name: Token<'a>, binding: Binding) -> Read<()> {
        // Variables keep their names when scopes are flattened, so one such name would hide the register everywhere.
        if name.text == "_" || is_special(name.text) {
            return Err(self.fail(rules::NAME, name, format!("{} has a meaning of its own", name.shown())));
        }
        if self.names.declare(name.text, binding) { Ok(()) } else { Err(self.declared_twice(name)) }
    }

    pub(super) fn declared_twice(&mut self, name: Token<'a>) -> super::Fail {
        self.fail(rules::NAME, name, format!("{} is declared twice", name.shown()))
    }

    /// The `[n][m]` behind a name, and whether there is an array.
    pub(super) fn dimensions(&mut self, shape: &Shape<'a>, name: Token<'a>) -> Read<(bool, Dimensions)> {
        let mut dims = Dimensions::default();
        let mut elements = Some(1u64);
        while self.eat(b'[') {
            if self.eat(b']') {
                if !dims.sizes.is_empty() {
                    return Err(self.fail(rules::SYNTAX, name, "only the first dimension can be left out"));
                }
                dims.open = true;
                dims.sizes.push(0);
            } else {
                let n = self.unsigned()?;
                elements = elements.and_then(|all| all.checked_mul(n));
                dims.sizes.push(n);
                self.expect(b']')?;
            }
            if dims.sizes.len() > MAX_DIMENSIONS {
                let message = format!("an array has at most {MAX_DIMENSIONS} dimensions");
                return Err(self.fail(rules::LIMIT, name, message));
            }
        }
        let array = !dims.sizes.is_empty() || shape.vector > 1;
        if shape.vector > 1 {
            dims.sizes.push(u64::from(shape.vector));
            elements = elements.and_then(|all| all.checked_mul(u64::from(shape.vector)));
        }
        let bytes = elements.and_then(|all| all.checked_mul(u64::from(shape.ty.bytes())));
        if bytes.is_none_or(|bytes| bytes > MAX_VARIABLE) {
            let message = format!("{} is larger than {MAX_VARIABLE} bytes", name.shown());
            return Err(self.fail(rules::LIMIT, name, message));
        }
        dims.elements = elements.unwrap_or(0);
        Ok((array, dims))
    }

    /// `.space {.align n} .type name{[n]}{= init}{, ...};`
    pub(super) fn variable(&mut self, linkage: Option<Linkage>, at_module: bool) -> Read<()> {
        let dot = self.advance();
        let space = match dot.text {
            "global" => StateSpace::Global,
            "shared" => StateSpace::Shared,
            "const" => StateSpace::Const,
            "local" => StateSpace::Local,
            _ if at_module => {
                let message = "`.param` variables stand inside functions";
                return Err(self.fail(rules::SYNTAX, dot, message));
            }
            _ => StateSpace::Param,
        };
        let shape = self.shape()?;
        self.storage_type(&shape, "variable")?;
        loop {
            let name = self.word("the name of the variable")?;
            let (array, dims) = self.dimensions(&shape, name)?;
            let mut len = (!dims.open).then_some(dims.elements);
            let init = if self.eat(b'=') {
                let (init, rows) = self.initializer(shape.ty, name, &dims)?;
                len = len.or_else(|| rows.checked_mul(dims.elements));
                Some(init)
            } else {
                None
            };
            let Attributes { managed, unified } = shape.attributes;
            let variable = Variable {
                name: name.text.to_owned(),
                space,
                ty: shape.ty,
                align: shape.align,
                len,
                array,
                linkage: linkage.unwrap_or_default(),
                init,
                managed,
                unified,
            };
            if at_module {
                let index = u32::try_from(self.module.variables.len()).unwrap_or(u32::MAX);
                self.declare(name, Binding::Module(index))?;
                self.module.variables.push(variable);
            } else {
                let index = u32::try_from(self.body.function.variables.len()).unwrap_or(u32::MAX);
                self.declare(name, Binding::Local(index))?;
                let unique = self.unique_local(name.text);
                self.body.function.variables.push(Variable { name: unique, ..variable });
            }
            if !self.eat(b',') {
                return self.expect(b';');
            }
        }
    }

    /// The value after `=`: one element, or lists in braces that follow the dimensions. Also says how many rows it gives.
    fn initializer(
        &mut self,
        ty: ScalarType,
        name: Token<'a>,
        dims: &Dimensions,
    ) -> Read<(Initializer, u64)> {
        let mut initial = Initial { ty, value: Initializer::default(), padding: 0 };
        if dims.sizes.is_empty() {
            if self.token.is(b'{') {
                return Err(self.fail(rules::OPERAND, name, "a list initialises an array only"));
            }
            self.element(&mut initial)?;
            return Ok((initial.value, 1));
        }
        let rows = self.row(&mut initial, name, &dims.sizes, dims.open)?;
        Ok((initial.value, rows))
    }

    /// `{...}` for the first of `sizes`; the number of entries.
    fn row(&mut self, initial: &mut Initial, name: Token<'a>, sizes: &[u64], open: bool) -> Read<u64> {
        let [size, inner @ ..] = sizes else { return Ok(0) };
        self.expect(b'{')?;
        let mut count = 0u64;
        if !self.eat(b'}') {
            loop {
                if !open && count >= *size {
                    let message =
                        format!("{} initialisers for {size} elements of {}", count + 1, name.shown());
                    return Err(self.fail(rules::OPERAND, name, message));
                }
                if inner.is_empty() {
                    self.element(initial)?;
                } else {
                    let given = self.row(initial, name, inner, false)?;
                    let deeper: u64 = inner[1..].iter().product();
                    initial.padding += (inner[0] - given) * deeper * u64::from(initial.ty.bytes());
                }
                count += 1;
                if !self.eat(b',') {
                    break;
                }
            }
            self.expect(b'}')?;
        }
        Ok(count)
    }

    /// One value: a constant expression, an address, or a byte of an address.
    fn element(&mut self, initial: &mut Initial) -> Read<()> {
        let at = self.token;
        if initial.padding > MAX_PADDING {
            return Err(self.fail(rules::LIMIT, at, "the rows before this leave out too many elements"));
        }
        let room = initial.value.bytes.len() + usize::try_from(initial.padding).unwrap_or(0);
        initial.value.bytes.resize(room, 0);
        initial.padding = 0;
        let bytes = initial.ty.bytes();
        if at.kind == Kind::Word && at.text != "WARP_SZ" {
            if !matches!(initial.ty, ScalarType::U32 | ScalarType::U64) {
                let message = format!("the address {} cannot initialise a `.{}`", at.shown(), initial.ty);
                return Err(self.fail(rules::NUMBER, at, message));
            }
            let address = self.initial_address()?;
            return self.place(initial, address, None);
        }
        let value = self.constant()?;
        if self.token.is(b'(') {
            // A mask such as `0xff00` selects a byte of the address behind it.
            self.advance();
            let byte = (0..8).find(|byte| value.integer() == Some(0xff << (8 * byte)));
            let Some(byte) = byte.filter(|_| initial.ty == ScalarType::U8) else {
                let message = "a mask is 0xff, 0xff00, ... before an address, in a `.u8` variable";
                return Err(self.fail(rules::NUMBER, at, message));
            };
            let address = self.initial_address()?;
            self.expect(b')')?;
            return self.place(initial, address, Some(byte));
        }
        let Some(bits) = bits_of(initial.ty, value) else {
            let message = format!("{} cannot initialise a `.{}`", at.shown(), initial.ty);
            return Err(self.fail(rules::NUMBER, at, message));
        };
        initial.value.bytes.extend_from_slice(&bits.to_le_bytes()[..bytes as usize]);
        Ok(())
    }

    fn place(&mut self, initial: &mut Initial, address: (Symbol, i64, bool), byte: Option<u8>) -> Read<()> {
        let (symbol, addend, generic) = address;
        let at = initial.value.bytes.len() as u64;
        let bytes = initial.ty.bytes();
        initial.value.addresses.push(InitialAddress { at, bytes, symbol, addend, generic, byte });
        initial.value.bytes.resize(initial.value.bytes.len() + bytes as usize, 0);
        Ok(())
    }

    /// `symbol{+n}` or `generic(symbol){+n}`
    fn initial_address(&mut self) -> Read<(Symbol, i64, bool)> {
        let mut name = self.word("a variable or function")?;
        let generic = name.text == "generic" && self.token.is(b'(');
        if generic {
            self.advance();
            name = self.word("a variable")?;
            self.expect(b')')?;
        }
        let symbol = match self.names.resolve(name.text) {
            Some(Meaning::Symbol(Binding::Module(i))) => Symbol::ModuleVariable(i),
            Some(Meaning::Symbol(Binding::Function(i)))
                if !generic && self.module.functions[i as usize].kind == FunctionKind::Device =>
            {
                Symbol::Function(i)
            }
            Some(_) => {
                let message = format!("{} has no address that is known at load", name.shown());
                return Err(self.fail(rules::OPERAND, name, message));
            }
            None => {
                return Err(self.fail(rules::NAME, name, format!("{} is not declared", name.shown())));
            }
        };
        let addend = if self.eat(b'+') { self.integer_constant()?.cast_signed() } else { 0 };
        Ok((symbol, addend, generic))
    }
}

/// The bits that a constant gives a variable of type `ty`; `None` if it does not fit.
fn bits_of(ty: ScalarType, value: Constant) -> Option<u64> {
    use ScalarType::{B32, B64, F32, F64};
    Some(match (ty, value) {
        (F32 | B32, Constant::F32(bits)) => u64::from(bits),
        (F32 | B32, Constant::Decimal(v)) => u64::from((v as f32).to_bits()),
        (F64 | B64, Constant::Decimal(v)) => v.to_bits(),
        (F64 | B64, Constant::F64(bits)) => bits,
        (F64, Constant::F32(bits)) => f64::from(f32::from_bits(bits)).to_bits(),
        (ty, Constant::Signed(_) | Constant::Unsigned(_)) if ty.bits() <= 64 && !ty.is_float() => {
            value.integer()?
        }
        _ => return None,
    })
}
