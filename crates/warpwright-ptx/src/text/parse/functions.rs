//! Device functions, signatures and calls.

use super::names::{Binding, Meaning};
use super::variables::Shape;
use super::{Parser, Read, rules};
use crate::inst::*;
use crate::module::*;
use crate::text::lex::{Kind, Token};
use crate::types::*;

/// The list or prototype that a label in front of `.branchtargets`, `.callprototype` or `.calltargets` names.
#[derive(Clone)]
pub(super) enum List<'a> {
    /// Labels, to be looked up from this scope.
    Branch { labels: Vec<Label<'a>>, scope: u32 },
    /// Index into the function's prototypes.
    Prototype(u32),
    /// Index into the function's target lists.
    Targets(u32),
}

/// A label by its name, or by the number behind its name.
#[derive(Clone, Copy)]
pub(super) struct Label<'a> {
    pub(super) name: Token<'a>,
    pub(super) number: Option<u32>,
}

/// The most entries of a list of labels or functions.
const MAX_LIST: u32 = 1 << 16;

impl<'a> Parser<'a> {
    /// `.entry name (params) directives { ... }` or the same with `;`
    pub(super) fn entry(&mut self, linkage: Option<Linkage>) -> Read<()> {
        self.advance();
        let name = self.word("the name of the kernel")?;
        self.start_function(Function { linkage: linkage.unwrap_or_default(), ..Function::entry(name.text) });
        self.function(name)
    }

    /// `.func (returns) name (params) directives { ... }` or the same with `;`
    pub(super) fn device_function(&mut self, linkage: Option<Linkage>) -> Read<()> {
        self.advance();
        self.start_function(Function { linkage: linkage.unwrap_or_default(), ..Function::device("") });
        self.names.open();
        let name = self.attribute_of_function().and_then(|()| self.results());
        let name = name.and_then(|()| self.word("the name of the function"));
        let read = name.and_then(|name| {
            name.text.clone_into(&mut self.body.function.name);
            self.function_inside(name)
        });
        self.names.close();
        read
    }

    /// `.attribute(.unified(a, b))`, which names the function for all devices.
    fn attribute_of_function(&mut self) -> Read<()> {
        if self.eat_dot("attribute") { self.attributes().map(|_| ()) } else { Ok(()) }
    }

    fn function(&mut self, name: Token<'a>) -> Read<()> {
        self.names.open();
        let read = self.function_inside(name);
        self.names.close();
        read
    }

    /// Everything behind the name, inside the scope of the parameters.
    fn function_inside(&mut self, name: Token<'a>) -> Read<()> {
        self.signature()?;
        if self.eat(b';') {
            return self.declare_function(name);
        }
        if !self.token.is(b'{') {
            return Err(self.unexpected("`{`"));
        }
        let index = self.define_function(name)?;
        self.body();
        let body = self.finish_body();
        if let Some(place) = self.module.functions.get_mut(index as usize) {
            *place = body;
        }
        Ok(())
    }

    /// A function without a body: keeps a place for it, so that it can be called.
    fn declare_function(&mut self, name: Token<'a>) -> Read<()> {
        let function = self.finish_body();
        match (self.names.outermost(name.text), function.kind) {
            (None, FunctionKind::Device) => {
                self.push_function(name, function, false);
                Ok(())
            }
            // A declared kernel is of no use before it is defined.
            (None, FunctionKind::Entry) => {
                if function.linkage != Linkage::Extern {
                    self.declared_entries.push(name);
                }
                Ok(())
            }
            (Some(Binding::Function(i)), kind) => {
                let known = &self.module.functions[i as usize];
                if known.kind == kind && !self.defined.contains(&i) {
                    self.same_shape(name, i, &function)
                } else {
                    Err(self.declared_twice(name))
                }
            }
            (Some(_), _) => Err(self.declared_twice(name)),
        }
    }

    /// Gives the function that is being read its place in the module.
    fn define_function(&mut self, name: Token<'a>) -> Read<u32> {
        match self.names.outermost(name.text) {
            None => {
                // Calls to itself need its shape already.
                let head = Function { blocks: Vec::new(), ..self.body.function.clone() };
                Ok(self.push_function(name, head, true))
            }
            Some(Binding::Function(i)) => {
                let known = &self.module.functions[i as usize];
                let function = &self.body.function;
                if known.kind != function.kind || self.defined.contains(&i) {
                    return Err(self.declared_twice(name));
                }
                let function = Function { blocks: Vec::new(), ..function.clone() };
                self.same_shape(name, i, &function)?;
                self.defined.insert(i);
                self.definitions.push(i);
                self.module.functions[i as usize] = function;
                Ok(i)
            }
            Some(_) => Err(self.declared_twice(name)),
        }
    }

    fn push_function(&mut self, name: Token<'a>, function: Function, defined: bool) -> u32 {
        let index = u32::try_from(self.module.functions.len()).unwrap_or(u32::MAX);
        if defined {
            self.defined.insert(index);
            self.definitions.push(index);
        }
        self.names.declare_outermost(name.text, Binding::Function(index));
        self.module.functions.push(function);
        index
    }

    /// Puts declarations first and definitions in the order of the text, so that what is printed declares before it uses.
    pub(super) fn order_functions(&mut self) {
        let declared = (0u32..).zip(&self.module.functions).map(|(i, _)| i);
        let declared = declared.filter(|i| !self.defined.contains(i));
        let order: Vec<u32> = declared.chain(self.definitions.iter().copied()).collect();
        if !order.is_sorted() {
            self.module.reorder_functions(&order);
        }
    }

    fn same_shape(&mut self, name: Token<'a>, index: u32, function: &Function) -> Read<()> {
        let shape = |f: &Function| {
            let Prototype { returns, params, .. } = f.prototype();
            (returns, params)
        };
        if shape(&self.module.functions[index as usize]) == shape(function) {
            return Ok(());
        }
        let message = format!("{} was declared with other parameters or results", name.shown());
        Err(self.fail(rules::NAME, name, message))
    }

    /// `(.param .b32 r)` before the name.
    fn results(&mut self) -> Read<()> {
        if !self.eat(b'(') || self.eat(b')') {
            return Ok(());
        }
        loop {
            self.param(true)?;
            if !self.eat(b',') {
                return self.expect(b')');
            }
        }
    }

    /// Parameters and directives, up to the `{` or `;`.
    fn signature(&mut self) -> Read<()> {
        if self.eat(b'(') && !self.eat(b')') {
            loop {
                self.param(false)?;
                if !self.eat(b',') {
                    break;
                }
            }
            self.expect(b')')?;
        }
        while self.token.kind == Kind::Dot {
            self.performance_directive()?;
        }
        Ok(())
    }

    fn param(&mut self, result: bool) -> Read<()> {
        let device = self.body.function.kind == FunctionKind::Device;
        let in_register = device && self.at_dot("reg");
        if !in_register && !self.at_dot("param") {
            return Err(self.unexpected("`.param`"));
        }
        self.advance();
        let shape = self.shape()?;
        let what = if in_register { "register" } else { "parameter" };
        self.storage_type(&shape, what)?;
        let name = self.word("the name of the parameter")?;
        let (array, dims) = self.dimensions(&shape, name)?;
        let open = array && dims.open;
        if open && !device {
            return Err(self.fail(rules::OPERAND, name, "a parameter array needs a length"));
        }
        let Shape { ty, align, pointer, .. } = shape;
        let mut param = Param {
            name: name.text.to_owned(),
            ty,
            array: array.then_some(if open { 0 } else { dims.elements }),
            align,
            pointer,
            register: None,
        };
        self.body.local_names.insert(name.text.to_owned());
        if in_register {
            if name.text == "_" {
                return Err(self.fail(rules::NAME, name, "`_` has a meaning of its own"));
            }
            if !self.names.declare_register(name.text, ty) {
                return Err(self.declared_twice(name));
            }
            if let Some(Meaning::Register(slot)) = self.names.resolve(name.text) {
                param.register = Some(self.mention(slot));
            }
        }
        let function = &mut self.body.function;
        let list = if result { &mut function.returns } else { &mut function.params };
        let index = u32::try_from(list.len()).unwrap_or(u32::MAX);
        list.push(param);
        match (in_register, result) {
            (true, _) => Ok(()),
            (false, true) => self.declare(name, Binding::Return(index)),
            (false, false) => self.declare(name, Binding::Param(index)),
        }
    }

    // Lists

    /// `.branchtargets ...;`, `.callprototype ...;` or `.calltargets ...;` behind its label.
    pub(super) fn list(&mut self, label: Token<'a>) -> Read<()> {
        let kind = self.advance();
        let list = match kind.text {
            "branchtargets" => {
                let labels = self.branch_targets()?;
                List::Branch { labels, scope: self.body.scope() }
            }
            "calltargets" => {
                let targets = self.call_targets()?;
                self.body.function.call_targets.push(targets);
                List::Targets(u32::try_from(self.body.function.call_targets.len() - 1).unwrap_or(u32::MAX))
            }
            _ => {
                let prototype = self.prototype()?;
                self.body.function.prototypes.push(prototype);
                List::Prototype(u32::try_from(self.body.function.prototypes.len() - 1).unwrap_or(u32::MAX))
            }
        };
        self.expect(b';')?;
        let key = (self.body.scope(), label.text);
        if self.body.lists.insert(key, list).is_some() {
            return Err(self.declared_twice(label));
        }
        Ok(())
    }

    /// Labels; `L<3>` is `L0, L1, L2`.
    fn branch_targets(&mut self) -> Read<Vec<Label<'a>>> {
        let mut labels = Vec::new();
        loop {
            let name = self.word("a label")?;
            if self.eat(b'<') {
                let count = self.unsigned32()?.min(MAX_LIST + 1);
                self.expect(b'>')?;
                if count == 0 {
                    return Err(self.fail(rules::OPERAND, name, "a list needs a label"));
                }
                labels.extend((0..count).map(|n| Label { name, number: Some(n) }));
            } else {
                labels.push(Label { name, number: None });
            }
            if labels.len() > MAX_LIST as usize {
                return Err(self.fail(rules::LIMIT, name, format!("a list has at most {MAX_LIST} entries")));
            }
            if !self.eat(b',') {
                return Ok(labels);
            }
        }
    }

    fn call_targets(&mut self) -> Read<Vec<SymbolId>> {
        let mut targets = Vec::new();
        loop {
            let name = self.word("the name of a function")?;
            targets.push(self.function_symbol(name)?);
            if targets.len() > MAX_LIST as usize {
                return Err(self.fail(rules::LIMIT, name, format!("a list has at most {MAX_LIST} entries")));
            }
            if !self.eat(b',') {
                return Ok(targets);
            }
        }
    }

    fn function_symbol(&mut self, name: Token<'a>) -> Read<SymbolId> {
        match self.names.resolve(name.text) {
            Some(Meaning::Symbol(Binding::Function(i))) => {
                if self.module.functions[i as usize].kind == FunctionKind::Entry {
                    return Err(self.fail(rules::OPERAND, name, "a kernel cannot be called"));
                }
                Ok(self.body.symbol(Symbol::Function(i)))
            }
            Some(_) => Err(self.fail(rules::OPERAND, name, format!("{} is not a function", name.shown()))),
            None => {
                let message = format!("{} is not declared; functions stand before their calls", name.shown());
                Err(self.fail(rules::NAME, name, message))
            }
        }
    }

    /// `(returns) _ (params) .noreturn`
    fn prototype(&mut self) -> Read<Prototype> {
        let returns = self.prototype_params()?;
        if self.word("`_`")?.text != "_" {
            return Err(self.unexpected("`_` for the name of the function"));
        }
        let params = self.prototype_params()?;
        let mut prototype = Prototype { returns, params, ..Prototype::default() };
        while self.token.kind == Kind::Dot {
            let dot = self.advance();
            match dot.text {
                "noreturn" => prototype.no_return = true,
                "abi_preserve" => prototype.abi_preserve = Some(self.unsigned32()?),
                "abi_preserve_control" => prototype.abi_preserve_control = Some(self.unsigned32()?),
                _ => return Err(self.unexpected_modifier(dot, "prototype")),
            }
        }
        Ok(prototype)
    }

    /// `(.param .b32 _, ...)`, or nothing.
    fn prototype_params(&mut self) -> Read<Vec<PrototypeParam>> {
        let mut params = Vec::new();
        if !self.eat(b'(') || self.eat(b')') {
            return Ok(params);
        }
        loop {
            let in_register = self.at_dot("reg");
            if !in_register && !self.at_dot("param") {
                return Err(self.unexpected("`.param` or `.reg`"));
            }
            self.advance();
            let shape = self.shape()?;
            self.storage_type(&shape, if in_register { "register" } else { "parameter" })?;
            let name = self.word("`_`")?;
            let (array, dims) = self.dimensions(&shape, name)?;
            let array = array.then_some(if dims.open { 0 } else { dims.elements });
            params.push(PrototypeParam { ty: shape.ty, array, align: shape.align, in_register });
            if !self.eat(b',') {
                self.expect(b')')?;
                return Ok(params);
            }
        }
    }

    /// The list that a name stands for, from the inside out.
    fn find_list(&mut self, name: Token<'a>) -> Read<List<'a>> {
        let mut at = Some(self.body.scope());
        while let Some(scope) = at {
            if let Some(list) = self.body.lists.get(&(scope, name.text)) {
                return Ok(list.clone());
            }
            at = self.body.parent(scope);
        }
        Err(self.fail(rules::NAME, name, format!("{} is not declared before this place", name.shown())))
    }

    // Calls and indexed branches

    /// `call{.uni} {(returns),} callee {, (args)} {, list}`; the `;` is left.
    pub(super) fn call(&mut self, head: Token<'a>, modifiers: &[Token<'a>]) -> Read<Inst> {
        let uniform = match modifiers {
            [] => false,
            [uni] if uni.text == "uni" => true,
            [other, ..] => return Err(self.unknown_modifier(head, *other)),
        };
        let from = self.checkpoint();
        let has_returns = self.token.is(b'(');
        if has_returns {
            // Their types depend on the callee, which comes later.
            self.skip_parentheses();
            self.expect(b',')?;
        }
        let name = self.word("a function or a register with its address")?;
        let mut callee = match self.names.resolve(name.text) {
            Some(Meaning::Register(slot)) => {
                Callee::Prototype { address: self.mention(slot), prototype: u32::MAX }
            }
            _ => Callee::Direct(self.function_symbol(name)?),
        };
        let behind_callee = self.checkpoint();
        let shape = match callee {
            Callee::Direct(symbol) => self.shape_of(symbol),
            _ => Prototype::default(),
        };
        let returns = if has_returns {
            self.restore(from);
            let returns = self.arguments(&shape.returns, true)?;
            self.restore(behind_callee);
            returns
        } else {
            Vec::new()
        };
        let mut args = Vec::new();
        let mut list = None;
        if self.eat(b',') {
            if self.token.is(b'(') {
                args = self.arguments(&shape.params, false)?;
                if self.eat(b',') {
                    list = Some(self.word("a prototype or list of targets")?);
                }
            } else {
                list = Some(self.word("arguments, a prototype or a list of targets")?);
            }
        }
        match (&mut callee, list) {
            (Callee::Direct(_), None) => {}
            (Callee::Direct(_), Some(list)) => {
                return Err(self.fail(rules::OPERAND, list, "a direct call takes no list"));
            }
            (_, None) => {
                let message = "a call through a register needs a prototype or a list of targets";
                return Err(self.fail(rules::OPERAND, name, message));
            }
            (Callee::Prototype { address, .. } | Callee::OneOf { address, .. }, Some(list)) => {
                let address = *address;
                callee = match self.find_list(list)? {
                    List::Prototype(prototype) => Callee::Prototype { address, prototype },
                    List::Targets(targets) => Callee::OneOf { address, targets },
                    List::Branch { .. } => {
                        return Err(self.fail(rules::OPERAND, list, "these are labels, not functions"));
                    }
                };
            }
        }
        Ok(Inst::Call { callee, uniform, returns, args })
    }

    fn shape_of(&self, function: SymbolId) -> Prototype {
        match self.body.function.symbols.get(function.0 as usize) {
            Some(Symbol::Function(i)) => {
                self.module.functions.get(*i as usize).map(Function::prototype).unwrap_or_default()
            }
            _ => Prototype::default(),
        }
    }

    /// `(a, b, ...)`; `formal` says what literals become.
    fn arguments(&mut self, formal: &[PrototypeParam], results: bool) -> Read<Vec<Operand>> {
        self.expect(b'(')?;
        let mut all = Vec::new();
        if self.eat(b')') {
            return Ok(all);
        }
        loop {
            let ty = formal.get(all.len()).map_or(ScalarType::B64, |p| p.ty);
            let at = self.token;
            let operand = if results && at.kind == Kind::Word && at.text == "_" {
                self.advance();
                Operand::Reg(self.unread(ty))
            } else {
                self.source(ty)?
            };
            match operand {
                Operand::Special(_) => {
                    let message = "a special register cannot be passed; move it to a register first";
                    return Err(self.fail(rules::OPERAND, at, message));
                }
                Operand::Imm(_) if results => {
                    return Err(self.fail(rules::OPERAND, at, "a result goes to a register or parameter"));
                }
                _ => all.push(operand),
            }
            if !self.eat(b',') {
                self.expect(b')')?;
                return Ok(all);
            }
        }
    }

    /// Skips from a `(` to behind its `)`, or to what ends the statement.
    fn skip_parentheses(&mut self) {
        while !matches!(self.token.kind, Kind::Punct(b')' | b';' | b'{' | b'}') | Kind::End) {
            self.advance();
        }
        self.eat(b')');
    }

    /// The operands of `brx.idx`: the index and the labels with the scope from which they are looked up.
    pub(super) fn indexed_branch(&mut self) -> Read<(Reg, Vec<Label<'a>>, u32)> {
        let index = match self.operand(ScalarType::U32)? {
            Operand::Reg(reg) => reg,
            literal => {
                let reg = self.unread(ScalarType::U32);
                self.insert(Inst::Mov { ty: ScalarType::U32, dst: reg, src: literal });
                reg
            }
        };
        self.expect(b',')?;
        let name = self.word("a list of labels")?;
        match self.find_list(name)? {
            List::Branch { labels, scope } => Ok((index, labels, scope)),
            _ => Err(self.fail(rules::OPERAND, name, format!("{} is not a list of labels", name.shown()))),
        }
    }
}
