//! Module headers, variables, parameters, register declarations and everything else that begins with a dot.

use super::names::Binding;
use super::operands::is_special;
use super::{MAX_REGISTERS, MAX_VARIABLE, Parser, Read, Severity, rules};
use crate::module::*;
use crate::text::lex::{Kind, Literal, Token};
use crate::types::*;

/// How often `.version` and `.target` have been seen, to demand each once and in front.
#[derive(Default)]
struct Header {
    version: bool,
    target: bool,
    complained: bool,
}

/// What a declaration says before its names.
struct Shape<'a> {
    ty: ScalarType,
    align: u32,
    pointer: Option<PointerAttr>,
    at: Token<'a>,
}

impl<'a> Parser<'a> {
    /// Reads the whole text.
    pub(super) fn module(&mut self) {
        let mut header = Header::default();
        while self.token.kind != Kind::End && !self.gave_up() {
            let from = self.checkpoint();
            if self.item(&mut header).is_err() {
                self.skip_item(from);
            }
        }
        if !(header.version && header.target || header.complained) {
            self.header_incomplete(&mut header);
        }
        if let Some((line, column)) = self.lexer.open_comment {
            let at = Token { kind: Kind::Bad, text: "/*", line, column };
            self.fail(rules::SYNTAX, at, "this comment is never closed");
        }
        // Labels are resolved at the end of a function, so their errors come late.
        self.diagnostics.sort_by_key(|d| (d.line, d.column));
    }

    fn header_incomplete(&mut self, header: &mut Header) {
        header.complained = true;
        let missing = if header.version { ".target" } else { ".version" };
        self.fail_here(
            rules::MODULE,
            format!("`{missing}` is missing; a module starts with `.version` and `.target`"),
        );
    }

    /// Skips what is left of a broken item: to behind its `;` or its braces.
    fn skip_item(&mut self, from: super::Checkpoint<'a>) {
        self.lexer = from.lexer;
        self.token = from.token;
        let mut before = self.advance();
        loop {
            match self.token.kind {
                Kind::End => return,
                Kind::Punct(b';') => {
                    self.advance();
                    return;
                }
                Kind::Punct(b'{') => {
                    self.skip_braces();
                    // An initialiser's braces are followed by a semicolon.
                    self.eat(b';');
                    return;
                }
                // The next item, if the terminator of this one is missing.
                Kind::Dot => match self.token.text {
                    "visible" | "extern" | "weak" | "version" | "target" | "address_size" => return,
                    "entry" | "func" if before.kind != Kind::Dot => return,
                    _ => {}
                },
                _ => {}
            }
            before = self.advance();
        }
    }

    fn item(&mut self, header: &mut Header) -> Read<()> {
        if self.token.kind != Kind::Dot {
            return Err(self.unexpected("a directive"));
        }
        let name = self.token;
        let complete = header.version && header.target;
        let in_order = match name.text {
            "version" => true,
            "target" => header.version,
            _ => complete,
        };
        if !in_order && !header.complained {
            self.header_incomplete(header);
        }
        match name.text {
            "version" => self.version(header),
            "target" => self.target(header),
            "address_size" => {
                self.advance();
                let at = self.token;
                match self.unsigned()? {
                    64 => Ok(()),
                    _ => Err(self.fail(rules::MODULE, at, "only `.address_size 64` is supported")),
                }
            }
            "file" => {
                self.advance();
                self.file()
            }
            "section" => {
                while !self.token.is(b'{') && !self.token.is(b';') && self.token.kind != Kind::End {
                    self.advance();
                }
                if !self.token.is(b'{') {
                    return Err(self.unexpected("`{`"));
                }
                self.skip_braces();
                Ok(())
            }
            "pragma" => self.pragma(),
            "alias" | "texref" | "samplerref" | "surfref" | "tex" | "common" => {
                Err(self.unsupported(name, &format!(".{}", name.text)))
            }
            _ => {
                let linkage = self.linkage();
                match (self.token.kind, self.token.text) {
                    (Kind::Dot, "entry") => self.entry(linkage),
                    (Kind::Dot, "func") => self.device_function(),
                    (Kind::Dot, "global" | "shared" | "const" | "local" | "param") => {
                        self.variable(linkage, true)
                    }
                    (Kind::Dot, _) if linkage.is_none() => {
                        let message = format!("unknown directive {}", self.token.shown());
                        Err(self.fail_here(rules::UNKNOWN, message))
                    }
                    _ => Err(self.unexpected("`.entry`, `.func` or a state space")),
                }
            }
        }
    }

    fn version(&mut self, header: &mut Header) -> Read<()> {
        let directive = self.advance();
        let at = self.token;
        if at.kind != Kind::Number {
            return Err(self.unexpected("a version such as `7.8`"));
        }
        self.advance();
        let version = at.text.split_once('.').and_then(|(major, minor)| {
            let digits = |s: &str| s.bytes().all(|b| b.is_ascii_digit());
            (digits(major) && digits(minor)).then_some(())?;
            Some(PtxVersion::new(major.parse().ok()?, minor.parse().ok()?))
        });
        let Some(version) = version else {
            return Err(self.fail(
                rules::MODULE,
                at,
                format!("{} is not a version such as `7.8`", at.shown()),
            ));
        };
        if std::mem::replace(&mut header.version, true) {
            return Err(self.fail(rules::MODULE, directive, "`.version` is given twice"));
        }
        self.module.version = version;
        Ok(())
    }

    fn target(&mut self, header: &mut Header) -> Read<()> {
        let directive = self.advance();
        if std::mem::replace(&mut header.target, true) {
            return Err(self.fail(rules::MODULE, directive, "`.target` is given twice"));
        }
        let mut named = false;
        loop {
            let at = self.word("a target such as `sm_90`")?;
            match (at.text, Target::from_name(at.text)) {
                (_, Some(target)) if !named => {
                    self.module.target = target;
                    named = true;
                }
                // They change debugging and texture state, not the meaning of the instructions read here.
                ("debug" | "texmode_unified" | "texmode_independent", _) => {}
                _ => {
                    return Err(self.fail(rules::MODULE, at, format!("unknown target {}", at.shown())));
                }
            }
            if !self.eat(b',') {
                return Ok(());
            }
        }
    }

    /// What follows `.file`: an index, a name, and perhaps a time and a size. It has no terminator.
    fn file(&mut self) -> Read<()> {
        self.unsigned()?;
        if self.token.kind != Kind::Quoted {
            return Err(self.unexpected("a quoted file name"));
        }
        self.advance();
        while self.eat(b',') {
            self.unsigned()?;
        }
        Ok(())
    }

    /// `.loc file line column{, function_name label{+n}}{, inlined_at file line column}`, without terminator.
    fn loc(&mut self) -> Read<()> {
        self.advance();
        for _ in 0..3 {
            self.unsigned()?;
        }
        while self.eat(b',') {
            match self.word("`function_name` or `inlined_at`")?.text {
                "function_name" => {
                    self.word("a label")?;
                    if self.eat(b'+') {
                        self.unsigned()?;
                    }
                }
                _ => {
                    for _ in 0..3 {
                        self.unsigned()?;
                    }
                }
            }
        }
        Ok(())
    }

    fn pragma(&mut self) -> Read<()> {
        self.advance();
        while self.token.kind == Kind::Quoted {
            self.advance();
            self.eat(b',');
        }
        self.expect(b';')
    }

    fn linkage(&mut self) -> Option<Linkage> {
        let linkage = match (self.token.kind, self.token.text) {
            (Kind::Dot, "visible") => Linkage::Visible,
            (Kind::Dot, "extern") => Linkage::Extern,
            (Kind::Dot, "weak") => Linkage::Weak,
            _ => return None,
        };
        self.advance();
        Some(linkage)
    }

    /// `.func` is not read; a prototype does no harm as long as nothing calls it.
    fn device_function(&mut self) -> Read<()> {
        let at = self.advance();
        while !self.token.is(b'{') && !self.token.is(b';') && self.token.kind != Kind::End {
            self.advance();
        }
        if self.eat(b';') {
            self.report(
                Severity::Warning,
                rules::UNSUPPORTED,
                at,
                "a `.func` prototype is left out".to_owned(),
            );
            return Ok(());
        }
        self.skip_braces();
        self.unsupported(at, ".func");
        Ok(())
    }

    fn entry(&mut self, linkage: Option<Linkage>) -> Read<()> {
        self.advance();
        let name = self.word("the name of the kernel")?;
        if !self.entry_names.insert(name.text) || self.names.is_known(name.text) {
            return Err(self.fail(rules::NAME, name, format!("{} is declared twice", name.shown())));
        }
        let linkage = linkage.unwrap_or_default();
        self.start_function(Function { linkage, ..Function::entry(name.text) });
        self.names.open();
        let read = self.signature();
        if read.is_ok() && self.token.is(b'{') {
            self.body();
        }
        self.names.close();
        read
    }

    /// Parameters and directives, up to the `{`.
    fn signature(&mut self) -> Read<()> {
        if self.eat(b'(') && !self.eat(b')') {
            loop {
                self.param()?;
                if !self.eat(b',') {
                    break;
                }
            }
            self.expect(b')')?;
        }
        while self.token.kind == Kind::Dot {
            self.performance_directive()?;
        }
        if self.token.is(b';') {
            let at = self.token;
            return Err(self.unsupported(at, ".entry without a body"));
        }
        if self.token.is(b'{') { Ok(()) } else { Err(self.unexpected("`{`")) }
    }

    fn performance_directive(&mut self) -> Read<()> {
        let at = self.token;
        if at.text == "pragma" {
            return self.pragma();
        }
        self.advance();
        match at.text {
            "maxntid" | "reqntid" | "reqnctapercluster" => {
                let dims = self.dims()?;
                let d = &mut self.body.function.directives;
                let place = match at.text {
                    "maxntid" => &mut d.max_threads,
                    "reqntid" => &mut d.required_threads,
                    _ => &mut d.cluster,
                };
                *place = Some(dims);
            }
            "minnctapersm" | "maxnreg" | "maxclusterrank" => {
                let value = self.unsigned32()?;
                let d = &mut self.body.function.directives;
                let place = match at.text {
                    "minnctapersm" => &mut d.min_blocks_per_sm,
                    "maxnreg" => &mut d.max_registers,
                    _ => &mut d.max_cluster_rank,
                };
                *place = Some(value);
            }
            "explicitcluster" => self.body.function.directives.explicit_cluster = true,
            "maxnctapersm" | "blocksareclusters" | "noreturn" | "abi_preserve" | "abi_preserve_control" => {
                return Err(self.unsupported(at, &format!(".{}", at.text)));
            }
            _ => return Err(self.fail(rules::UNKNOWN, at, format!("unknown directive {}", at.shown()))),
        }
        Ok(())
    }

    /// One to three numbers; the ones left out are 1.
    fn dims(&mut self) -> Read<[u32; 3]> {
        let mut dims = [1; 3];
        for (i, dim) in dims.iter_mut().enumerate() {
            if i > 0 && !self.eat(b',') {
                break;
            }
            *dim = self.unsigned32()?;
        }
        Ok(dims)
    }

    /// `{.align n} .type {.ptr {.space} {.align n}}` in any order before a name.
    fn shape(&mut self) -> Read<Shape<'a>> {
        let at = self.token;
        let (mut ty, mut align, mut pointer) = (None, None, None::<PointerAttr>);
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
                "v2" | "v4" | "v8" | "attribute" | "texref" | "samplerref" | "surfref" => {
                    return Err(self.unsupported(dot, &format!(".{}", dot.text)));
                }
                text => match (space(text), ScalarType::from_name(text), &mut pointer) {
                    (Some(space), _, Some(pointer)) => pointer.space = space,
                    (_, Some(named), _) if ty.is_none() => ty = Some(named),
                    _ => return Err(self.unexpected_modifier(dot, "declaration")),
                },
            }
        }
        let Some(ty) = ty else {
            return Err(self.fail(rules::MODIFIER, at, "a declaration needs a type such as `.b32`"));
        };
        Ok(Shape { ty, align: align.unwrap_or_else(|| ty.bytes()), pointer, at })
    }

    fn unexpected_modifier(&mut self, at: Token<'a>, of: &str) -> super::Fail {
        self.fail(rules::MODIFIER, at, format!("{} does not belong in a {of}", at.shown()))
    }

    /// Refuses types that only instructions have.
    fn storage_type(&mut self, shape: &Shape<'a>, what: &str) -> Read<()> {
        use ScalarType::*;
        let only_instructions = matches!(shape.ty, BF16 | BF16x2 | TF32 | E4M3x2 | E5M2x2);
        if only_instructions || (shape.ty == Pred && what != "register") {
            let hint =
                if only_instructions { format!("; use `.{}`", shape.ty.to_bits()) } else { String::new() };
            let message = format!("there is no {what} of type `.{}`{hint}", shape.ty);
            return Err(self.fail(rules::MODIFIER, shape.at, message));
        }
        Ok(())
    }

    fn param(&mut self) -> Read<()> {
        if !self.eat_dot("param") {
            return Err(self.unexpected("`.param`"));
        }
        let shape = self.shape()?;
        self.storage_type(&shape, "parameter")?;
        let name = self.word("the name of the parameter")?;
        let (array, len) = self.array(shape.ty, name)?;
        if array && len.is_none() {
            return Err(self.fail(rules::OPERAND, name, "a parameter array needs a length"));
        }
        let Shape { ty, align, pointer, .. } = shape;
        let function = &mut self.body.function;
        let index = u32::try_from(function.params.len()).unwrap_or(u32::MAX);
        function.params.push(Param {
            name: name.text.to_owned(),
            ty,
            array: if array { len } else { None },
            align,
            pointer,
            register: None,
        });
        self.body.local_names.insert(name.text.to_owned());
        self.declare(name, Binding::Param(index))
    }

    fn declare(&mut self, name: Token<'a>, binding: Binding) -> Read<()> {
        // Variables keep their names when scopes are flattened, so one such name would hide the register everywhere.
        if name.text == "_" || is_special(name.text) {
            return Err(self.fail(rules::NAME, name, format!("{} has a meaning of its own", name.shown())));
        }
        if self.names.declare(name.text, binding) {
            Ok(())
        } else {
            Err(self.fail(rules::NAME, name, format!("{} is declared twice", name.shown())))
        }
    }

    /// The `[n][m]` behind a name: whether there is one, and the number of elements unless it is `[]`.
    fn array(&mut self, ty: ScalarType, name: Token<'a>) -> Read<(bool, Option<u64>)> {
        let (mut array, mut len, mut open) = (false, Some(1u64), false);
        while self.eat(b'[') {
            if self.eat(b']') {
                if array {
                    return Err(self.fail(rules::SYNTAX, name, "only the first dimension can be left out"));
                }
                open = true;
            } else {
                let n = self.unsigned()?;
                len = len.and_then(|len| len.checked_mul(n));
                self.expect(b']')?;
            }
            array = true;
        }
        let bytes = len.and_then(|len| len.checked_mul(u64::from(ty.bytes())));
        if bytes.is_none_or(|bytes| bytes > MAX_VARIABLE) {
            let message = format!("{} is larger than {MAX_VARIABLE} bytes", name.shown());
            return Err(self.fail(rules::LIMIT, name, message));
        }
        if open && len != Some(1) {
            return Err(self.fail(rules::UNSUPPORTED, name, "`[][n]` is not supported yet"));
        }
        Ok((array, if open { None } else { len }))
    }

    /// `.space {.align n} .type name{[n]}{= init}{, ...};`
    fn variable(&mut self, linkage: Option<Linkage>, at_module: bool) -> Read<()> {
        let dot = self.advance();
        let space = match dot.text {
            "global" => StateSpace::Global,
            "shared" => StateSpace::Shared,
            "const" => StateSpace::Const,
            "local" => StateSpace::Local,
            _ => return Err(self.unsupported(dot, ".param variable")),
        };
        let shape = self.shape()?;
        self.storage_type(&shape, "variable")?;
        loop {
            let name = self.word("the name of the variable")?;
            let (array, mut len) = self.array(shape.ty, name)?;
            let init =
                if self.eat(b'=') { Some(self.initialiser(shape.ty, name, array, &mut len)?) } else { None };
            let variable = Variable {
                name: name.text.to_owned(),
                space,
                ty: shape.ty,
                align: shape.align,
                len,
                array,
                linkage: linkage.unwrap_or_default(),
                init: init.map(|bytes| Initialiser { bytes, addresses: Vec::new() }),
                managed: false,
                unified: None,
            };
            if at_module {
                if self.entry_names.contains(name.text) {
                    return Err(self.fail(rules::NAME, name, format!("{} is declared twice", name.shown())));
                }
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

    /// What follows `=`: a literal, or a flat list of literals in braces.
    fn initialiser(
        &mut self,
        ty: ScalarType,
        name: Token<'a>,
        array: bool,
        len: &mut Option<u64>,
    ) -> Read<Vec<u8>> {
        let mut bytes = Vec::new();
        let mut count = 0u64;
        if self.eat(b'{') {
            if !array {
                return Err(self.fail(rules::OPERAND, name, "a list initialises an array only"));
            }
            if !self.eat(b'}') {
                loop {
                    self.element(ty, &mut bytes)?;
                    count += 1;
                    if !self.eat(b',') {
                        break;
                    }
                }
                self.expect(b'}')?;
            }
        } else {
            if array {
                return Err(self.unexpected("`{`"));
            }
            self.element(ty, &mut bytes)?;
            count = 1;
        }
        let room = *len.get_or_insert(count);
        if count > room {
            let message = format!("{count} initialisers for {room} elements of {}", name.shown());
            return Err(self.fail(rules::OPERAND, name, message));
        }
        Ok(bytes)
    }

    fn element(&mut self, ty: ScalarType, bytes: &mut Vec<u8>) -> Read<()> {
        let negative = self.eat(b'-');
        let at = self.token;
        if self.token.kind == Kind::Word || self.token.is(b'{') {
            let what = if self.token.is(b'{') { "nested initialisers" } else { "address initialisers" };
            return Err(self.fail_here(rules::UNSUPPORTED, format!("{what} are not supported yet")));
        }
        let literal = self.literal()?;
        let flip = |bits: u64, width: u32| bits ^ (u64::from(negative) << (width - 1));
        let bits = match (ty, literal) {
            (ScalarType::F32 | ScalarType::B32, Literal::F32(bits)) if !negative => u64::from(bits),
            (ScalarType::F32, Literal::Decimal(bits)) => {
                flip(u64::from((f64::from_bits(bits) as f32).to_bits()), 32)
            }
            (ScalarType::F64 | ScalarType::B64, Literal::F64(bits)) => flip(bits, 64),
            (ScalarType::F64, Literal::Decimal(bits)) => flip(bits, 64),
            (ScalarType::F64, Literal::F32(bits)) if !negative => {
                flip(f64::from(f32::from_bits(bits)).to_bits(), 64)
            }
            (ty, Literal::Int(v)) if ty.bits() <= 64 && !matches!(ty, ScalarType::F32 | ScalarType::F64) => {
                if negative {
                    v.wrapping_neg()
                } else {
                    v
                }
            }
            _ => {
                let message = format!("{} cannot initialise a `.{ty}`", at.shown());
                return Err(self.fail(rules::NUMBER, at, message));
            }
        };
        bytes.extend_from_slice(&bits.to_le_bytes()[..ty.bytes() as usize]);
        Ok(())
    }

    /// A directive inside a function body.
    pub(super) fn body_directive(&mut self) -> Read<()> {
        let at = self.token;
        match at.text {
            "reg" => self.registers(),
            "global" | "shared" | "const" | "local" | "param" => self.variable(None, false),
            "extern" | "visible" | "weak" => {
                Err(self.fail(rules::SYNTAX, at, format!("{} stands at module level only", at.shown())))
            }
            "loc" => self.loc(),
            "file" => {
                self.advance();
                self.file()
            }
            "pragma" => self.pragma(),
            "branchtargets" | "calltargets" | "callprototype" | "alloca" => {
                Err(self.unsupported(at, &format!(".{}", at.text)))
            }
            "maxntid" | "reqntid" | "minnctapersm" | "maxnreg" | "reqnctapercluster" => {
                let message = format!("{} stands before the `{{` of the kernel", at.shown());
                Err(self.fail(rules::SYNTAX, at, message))
            }
            _ => Err(self.fail(rules::UNKNOWN, at, format!("unknown directive {}", at.shown()))),
        }
    }

    /// `.reg .type a, %r<10>;`
    fn registers(&mut self) -> Read<()> {
        self.advance();
        let shape = self.shape()?;
        self.storage_type(&shape, "register")?;
        loop {
            let name = self.word("the name of a register")?;
            if name.text == "_" {
                return Err(self.fail(rules::NAME, name, "`_` has a meaning of its own"));
            }
            let fresh = if self.eat(b'<') {
                let count_at = self.token;
                let count = self.unsigned()?;
                self.expect(b'>')?;
                let fits = self.names.declared_with(count) <= MAX_REGISTERS;
                match u32::try_from(count) {
                    Ok(count) if fits => self.names.declare_range(name.text, shape.ty, count),
                    _ => {
                        let message = format!("a function declares at most {MAX_REGISTERS} registers");
                        return Err(self.fail(rules::LIMIT, count_at, message));
                    }
                }
            } else if self.names.declared_with(1) > MAX_REGISTERS {
                let message = format!("a function declares at most {MAX_REGISTERS} registers");
                return Err(self.fail(rules::LIMIT, name, message));
            } else {
                self.names.declare_register(name.text, shape.ty)
            };
            if !fresh {
                return Err(self.fail(rules::NAME, name, format!("{} is declared twice", name.shown())));
            }
            if !self.eat(b',') {
                return self.expect(b';');
            }
        }
    }
}

/// The state space of a modifier, `generic` excluded because nobody writes it.
pub(super) fn space(text: &str) -> Option<StateSpace> {
    Some(match text {
        "global" => StateSpace::Global,
        "shared" | "shared::cta" => StateSpace::Shared,
        "shared::cluster" => StateSpace::SharedCluster,
        "local" => StateSpace::Local,
        "param" | "param::entry" => StateSpace::Param,
        "const" => StateSpace::Const,
        _ => return None,
    })
}
