//! Module headers, variables, parameters, register declarations and everything else that begins with a dot.

use super::names::{Binding, Meaning};
use super::{MAX_REGISTERS, Parser, Read, rules};
use crate::module::*;
use crate::text::lex::{Kind, Token};
use crate::types::*;

/// How often `.version` and `.target` have been seen, to demand each once and in front.
#[derive(Default)]
struct Header {
    version: bool,
    target: bool,
    complained: bool,
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
        for name in std::mem::take(&mut self.declared_entries) {
            if self.names.outermost(name.text).is_none() {
                let message = format!("kernel {} is declared and not defined", name.shown());
                self.fail(rules::NAME, name, message);
            }
        }
        if let Some((line, column)) = self.lexer.open_comment {
            let at = Token { kind: Kind::Bad, text: "/*", line, column };
            self.fail(rules::SYNTAX, at, "this comment is never closed");
        }
        self.order_functions();
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
                    "visible" | "extern" | "weak" | "common" | "version" | "target" | "address_size" => {
                        return;
                    }
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
            "pragma" => {
                let pragmas = self.pragma()?;
                self.module.pragmas.extend(pragmas);
                Ok(())
            }
            "alias" => self.alias(),
            "texref" | "samplerref" | "surfref" | "tex" => {
                let message = format!("texture and surface references such as {} are not read", name.shown());
                Err(self.fail(rules::UNSUPPORTED, name, message))
            }
            _ => {
                let linkage = self.linkage();
                match (self.token.kind, self.token.text) {
                    (Kind::Dot, "entry") => self.entry(linkage),
                    (Kind::Dot, "func") => self.device_function(linkage),
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
            // The assembler takes `sm_90A` too.
            match (at.text, Target::from_name(&at.text.to_ascii_lowercase())) {
                (_, Some(target)) if !named => {
                    self.module.target = target;
                    named = true;
                }
                ("debug", _) => self.module.debug = true,
                // They change texture state, not the meaning of the instructions read here.
                ("texmode_unified" | "texmode_independent", _) => {}
                _ => {
                    return Err(self.fail(rules::MODULE, at, format!("unknown target {}", at.shown())));
                }
            }
            if !self.eat(b',') {
                return Ok(());
            }
        }
    }

    /// The rest of `.file`: an index, a name, and perhaps a time and a size. It has no terminator.
    fn file(&mut self) -> Read<()> {
        let index = self.unsigned32()?;
        if self.token.kind != Kind::Quoted {
            return Err(self.unexpected("a quoted file name"));
        }
        let name = self.advance().text.trim_matches('"').to_owned();
        while self.eat(b',') {
            self.unsigned()?;
        }
        // Files inside functions may repeat what stands before.
        if !self.module.files.iter().any(|f| f.index == index) {
            self.module.files.push(SourceFile { index, name });
        }
        Ok(())
    }

    /// `.loc file line column{, function_name label{+n}}{, inlined_at file line column}`, without terminator.
    fn loc(&mut self) -> Read<()> {
        self.advance();
        let [file, line, column] = self.source_place()?;
        let mut inlined_at = None;
        while self.eat(b',') {
            match self.word("`function_name` or `inlined_at`")?.text {
                "function_name" => {
                    self.word("a label")?;
                    if self.eat(b'+') {
                        self.unsigned()?;
                    }
                }
                _ => {
                    let call = self.source_place()?;
                    inlined_at = Some(self.body.line_of(call, None));
                }
            }
        }
        self.body.start_line([file, line, column], inlined_at);
        Ok(())
    }

    /// File, line and column.
    fn source_place(&mut self) -> Read<[u32; 3]> {
        Ok([self.unsigned32()?, self.unsigned32()?, self.unsigned32()?])
    }

    /// `.pragma "a", "b";`
    fn pragma(&mut self) -> Read<Vec<String>> {
        self.advance();
        let mut strings = Vec::new();
        while self.token.kind == Kind::Quoted {
            let string = self.advance().text.trim_matches('"');
            // Other characters have been objected to.
            if string.is_ascii() {
                strings.push(string.to_owned());
            }
            self.eat(b',');
        }
        self.expect(b';')?;
        Ok(strings)
    }

    /// `.alias name, of;`
    fn alias(&mut self) -> Read<()> {
        self.advance();
        let mut functions = [0; 2];
        for (i, function) in functions.iter_mut().enumerate() {
            if i > 0 {
                self.expect(b',')?;
            }
            let name = self.word("the name of a function")?;
            match self.names.resolve(name.text) {
                Some(Meaning::Symbol(Binding::Function(index))) => *function = index,
                _ => {
                    let message = format!("{} is not a function that is declared before", name.shown());
                    return Err(self.fail(rules::NAME, name, message));
                }
            }
        }
        self.expect(b';')?;
        let [function, of] = functions;
        self.module.aliases.push(Alias { function, of });
        Ok(())
    }

    fn linkage(&mut self) -> Option<Linkage> {
        let linkage = match (self.token.kind, self.token.text) {
            (Kind::Dot, "visible") => Linkage::Visible,
            (Kind::Dot, "extern") => Linkage::Extern,
            (Kind::Dot, "weak") => Linkage::Weak,
            (Kind::Dot, "common") => Linkage::Common,
            _ => return None,
        };
        self.advance();
        Some(linkage)
    }

    pub(super) fn performance_directive(&mut self) -> Read<()> {
        let at = self.token;
        if at.text == "pragma" {
            let pragmas = self.pragma()?;
            self.body.pragmas(pragmas);
            return Ok(());
        }
        let of_calls = matches!(at.text, "noreturn" | "abi_preserve" | "abi_preserve_control");
        match self.body.function.kind {
            FunctionKind::Device if !of_calls => return Err(self.unexpected_modifier(at, "device function")),
            FunctionKind::Entry if at.text.starts_with("abi_") => {
                return Err(self.unexpected_modifier(at, "kernel"));
            }
            FunctionKind::Device | FunctionKind::Entry => {}
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
            "minnctapersm" | "maxnreg" | "maxclusterrank" | "abi_preserve" | "abi_preserve_control" => {
                let value = self.unsigned32()?;
                let d = &mut self.body.function.directives;
                let place = match at.text {
                    "minnctapersm" => &mut d.min_blocks_per_sm,
                    "maxnreg" => &mut d.max_registers,
                    "abi_preserve" => &mut d.abi_preserve,
                    "abi_preserve_control" => &mut d.abi_preserve_control,
                    _ => &mut d.max_cluster_rank,
                };
                *place = Some(value);
            }
            "explicitcluster" => self.body.function.directives.explicit_cluster = true,
            "blocksareclusters" => self.body.function.directives.blocks_are_clusters = true,
            "noreturn" if self.body.function.kind == FunctionKind::Device => {
                self.body.function.directives.no_return = true;
            }
            "maxnctapersm" => {
                let message = "`.maxnctapersm` is gone since PTX 2.1; use `.minnctapersm`";
                return Err(self.fail(rules::UNKNOWN, at, message));
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
            "pragma" => {
                let pragmas = self.pragma()?;
                self.body.pragmas(pragmas);
                Ok(())
            }
            "branchtargets" | "calltargets" | "callprototype" => {
                Err(self.fail(rules::SYNTAX, at, format!("{} stands behind a label", at.shown())))
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
                let components = count.saturating_mul(u64::from(shape.vector));
                let fits = self.names.declared_with(components) <= MAX_REGISTERS;
                match u32::try_from(count) {
                    Ok(count) if fits => self.names.declare_range(name.text, shape.ty, shape.vector, count),
                    _ => {
                        let message = format!("a function declares at most {MAX_REGISTERS} registers");
                        return Err(self.fail(rules::LIMIT, count_at, message));
                    }
                }
            } else if self.names.declared_with(u64::from(shape.vector)) > MAX_REGISTERS {
                let message = format!("a function declares at most {MAX_REGISTERS} registers");
                return Err(self.fail(rules::LIMIT, name, message));
            } else {
                self.names.declare_vector(name.text, shape.ty, shape.vector)
            };
            if !fresh {
                return Err(self.declared_twice(name));
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
        "param" | "param::entry" | "param::func" => StateSpace::Param,
        "const" => StateSpace::Const,
        _ => return None,
    })
}
