//! From text to a module.
//!
//! One pass over the tokens without recursion. An error costs the statement it stands in: the parser says what is
//! wrong and goes on behind the next `;`. Nothing is allocated for what the text merely declares, so hostile sizes
//! cost nothing.

mod arith;
mod asynchronous;
mod body;
mod cluster;
mod constant;
mod directives;
mod functions;
mod memory;
mod names;
mod opaque;
mod opcode;
mod operands;
mod rest;
mod tcgen05;
mod tensor;
mod variables;
mod warp;

use std::collections::HashSet;

use super::diagnostic::{Diagnostic, Parsed, Severity, rules};
use super::lex::{Kind, Lexer, Literal, Token, literal};
use crate::isa::newer_version_note;
use crate::module::*;
use crate::types::*;
use body::Body;
use names::Names;

/// The largest text that is read, in bytes.
pub const MAX_TEXT: usize = 1 << 30;
/// The most registers that a function may declare.
pub const MAX_REGISTERS: u64 = 1 << 20;
/// The largest variable or parameter, in bytes.
pub const MAX_VARIABLE: u64 = 1 << 40;
/// The deepest nesting of `{` in a function.
pub const MAX_NESTING: usize = 256;
/// The number of diagnostics after which the parser gives up.
pub const MAX_DIAGNOSTICS: usize = 500;

/// Reads a module. It never panics; what cannot be read is left out and named in the diagnostics.
pub fn parse(text: &str) -> Parsed {
    // A C string's terminator is not part of the text.
    let text = text.trim_end_matches('\0');
    let mut parser = Parser::new(text);
    if text.len() > MAX_TEXT {
        parser.fail_here(rules::LIMIT, format!("the text is larger than {MAX_TEXT} bytes"));
    } else {
        parser.check_ascii();
        parser.module();
    }
    Parsed { module: parser.module, diagnostics: parser.diagnostics, complete: parser.complete }
}

/// An error that has been reported already.
#[derive(Debug)]
struct Fail;

/// The result of reading a part of a statement.
type Read<T> = Result<T, Fail>;

struct Parser<'a> {
    text: &'a str,
    lexer: Lexer<'a>,
    /// The next token that nothing has consumed.
    token: Token<'a>,
    module: Module,
    /// Names and their meaning at this point of the text.
    names: Names<'a>,
    /// Functions of the module that have a body, or will have one once it has been read.
    defined: HashSet<u32>,
    /// The same in the order of their bodies.
    definitions: Vec<u32>,
    /// Kernels that have been declared so far.
    declared_entries: Vec<Token<'a>>,
    /// The function being read.
    body: Body<'a>,
    diagnostics: Vec<Diagnostic>,
    /// Which component a vector register without one stands for at the moment.
    component: Option<u32>,
    /// Whether every statement so far is in the module.
    complete: bool,
    /// The modifiers of the current opcode; kept to reuse the allocation.
    modifiers: Vec<Token<'a>>,
}

/// A place to go back to.
#[derive(Clone, Copy)]
struct Checkpoint<'a> {
    lexer: Lexer<'a>,
    token: Token<'a>,
}

impl<'a> Parser<'a> {
    fn new(text: &'a str) -> Self {
        let mut lexer = Lexer::new(text);
        let token = lexer.next();
        Self {
            text,
            lexer,
            token,
            module: Module::new(PtxVersion::new(6, 3), Target::sm(75)),
            names: Names::default(),
            defined: HashSet::new(),
            definitions: Vec::new(),
            declared_entries: Vec::new(),
            body: Body::new(Function::entry("")),
            diagnostics: Vec::new(),
            component: None,
            complete: true,
            modifiers: Vec::new(),
        }
    }

    fn check_ascii(&mut self) {
        if self.text.is_ascii() {
            return;
        }
        let Some(at) = self.text.bytes().position(|b| !b.is_ascii()) else { return };
        let before = &self.text.as_bytes()[..at];
        let line_start = before.iter().rposition(|b| *b == b'\n').map_or(0, |n| n + 1);
        let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        self.complete = false;
        self.diagnostics.push(Diagnostic {
            severity: Severity::Error,
            rule: rules::ASCII,
            line: count(before.iter().filter(|b| **b == b'\n').count() + 1),
            column: count(at - line_start + 1),
            len: count(self.text[at..].chars().next().map_or(1, char::len_utf8)),
            message: "PTX is ASCII, comments included".to_owned(),
        });
    }

    // Diagnostics

    fn report(&mut self, severity: Severity, rule: &'static str, at: Token<'_>, message: String) {
        self.complete &= severity != Severity::Error;
        if self.diagnostics.len() < MAX_DIAGNOSTICS {
            let Token { line, column, .. } = at;
            self.diagnostics.push(Diagnostic { severity, rule, line, column, len: at.len(), message });
        }
    }

    fn fail(&mut self, rule: &'static str, at: Token<'_>, message: impl Into<String>) -> Fail {
        let mut message = message.into();
        if let Some(note) = newer_version_note(self.module.version)
            && matches!(rule, rules::UNKNOWN | rules::MODIFIER)
        {
            message += &format!(" ({note})");
        }
        self.report(Severity::Error, rule, at, message);
        Fail
    }

    fn fail_here(&mut self, rule: &'static str, message: impl Into<String>) -> Fail {
        self.fail(rule, self.token, message)
    }

    /// `expected ..., found ...`
    fn unexpected(&mut self, expected: &str) -> Fail {
        let message = format!("expected {expected}, found {}", self.token.shown());
        self.fail_here(rules::SYNTAX, message)
    }

    fn unsupported(&mut self, at: Token<'_>, what: &str) -> Fail {
        self.fail(rules::UNSUPPORTED, at, format!("`{what}` is not supported yet"))
    }

    /// Whether so much is wrong that reading on serves nobody.
    fn gave_up(&self) -> bool {
        self.diagnostics.len() >= MAX_DIAGNOSTICS
    }

    // Tokens

    fn advance(&mut self) -> Token<'a> {
        std::mem::replace(&mut self.token, self.lexer.next())
    }

    fn eat(&mut self, punct: u8) -> bool {
        let hit = self.token.is(punct);
        if hit {
            self.advance();
        }
        hit
    }

    fn expect(&mut self, punct: u8) -> Read<()> {
        if self.eat(punct) { Ok(()) } else { Err(self.unexpected(&format!("`{}`", char::from(punct)))) }
    }

    fn at_dot(&self, name: &str) -> bool {
        self.token.kind == Kind::Dot && self.token.text == name
    }

    fn eat_dot(&mut self, name: &str) -> bool {
        let hit = self.at_dot(name);
        if hit {
            self.advance();
        }
        hit
    }

    fn word(&mut self, what: &str) -> Read<Token<'a>> {
        if self.token.kind == Kind::Word { Ok(self.advance()) } else { Err(self.unexpected(what)) }
    }

    fn literal(&mut self) -> Read<Literal> {
        if self.token.kind != Kind::Number {
            return Err(self.unexpected("a number"));
        }
        let token = self.advance();
        literal(token.text)
            .map_err(|why| self.fail(rules::NUMBER, token, format!("{why}: {}", token.shown())))
    }

    /// A non-negative integer literal.
    fn unsigned(&mut self) -> Read<u64> {
        let at = self.token;
        match self.literal()? {
            Literal::Int(v) | Literal::Unsigned(v) => Ok(v),
            _ => Err(self.fail(rules::NUMBER, at, format!("expected an integer, found {}", at.shown()))),
        }
    }

    fn unsigned32(&mut self) -> Read<u32> {
        let at = self.token;
        let value = self.unsigned()?;
        u32::try_from(value)
            .map_err(|_| self.fail(rules::NUMBER, at, format!("{} does not fit in 32 bits", at.shown())))
    }

    // Recovery

    const fn checkpoint(&self) -> Checkpoint<'a> {
        Checkpoint { lexer: self.lexer, token: self.token }
    }

    const fn restore(&mut self, to: Checkpoint<'a>) {
        self.lexer = to.lexer;
        self.token = to.token;
    }

    /// Skips the statement that starts at `from`: to behind its `;`, or to the `}` that ends the scope around it.
    /// Returns how many scopes the skipped text opened and did not close.
    fn skip_statement(&mut self, from: Checkpoint<'a>) -> usize {
        self.restore(from);
        let mut depth = 0usize;
        loop {
            match self.token.kind {
                Kind::End => return depth,
                Kind::Punct(b';') => {
                    self.advance();
                    return depth;
                }
                Kind::Punct(b'{') => depth += 1,
                Kind::Punct(b'}') => match depth.checked_sub(1) {
                    Some(less) => depth = less,
                    None => return 0,
                },
                _ => {}
            }
            self.advance();
        }
    }

    /// Skips a `{` with everything up to the matching `}`.
    fn skip_braces(&mut self) {
        let mut depth = 0usize;
        loop {
            match self.advance().kind {
                Kind::End => return,
                Kind::Punct(b'{') => depth += 1,
                Kind::Punct(b'}') => {
                    depth = depth.saturating_sub(1);
                    if depth == 0 {
                        return;
                    }
                }
                _ => {}
            }
        }
    }
}
