//! The modifiers of an opcode, taken out one by one in whatever order they stand.

use super::{Parser, Read};
use crate::text::lex::Token;

/// Modifiers that nothing has claimed yet.
pub(super) struct Rest<'a> {
    pub(super) head: Token<'a>,
    left: Vec<Token<'a>>,
}

impl<'a> Rest<'a> {
    pub(super) fn new(head: Token<'a>, modifiers: &[Token<'a>]) -> Self {
        Self { head, left: modifiers.to_vec() }
    }

    /// Takes a modifier; whether it was there.
    pub(super) fn take(&mut self, name: &str) -> bool {
        self.pick(|text| (text == name).then_some(())).is_some()
    }

    /// Takes the first modifier that `read` knows.
    pub(super) fn pick<T>(&mut self, read: impl Fn(&str) -> Option<T>) -> Option<T> {
        let (at, value) = self.left.iter().enumerate().find_map(|(i, t)| Some((i, read(t.text)?)))?;
        self.left.remove(at);
        Some(value)
    }
}

impl<'a> Parser<'a> {
    /// Takes a modifier that must be there.
    pub(super) fn require(&mut self, rest: &mut Rest<'a>, names: &[&str]) -> Read<()> {
        for name in names {
            if !rest.take(name) {
                return Err(self.missing_modifier(rest.head, &format!("`.{name}`")));
            }
        }
        Ok(())
    }

    /// Takes the first modifier that `read` knows; there must be one.
    pub(super) fn need<T>(
        &mut self,
        rest: &mut Rest<'a>,
        read: impl Fn(&str) -> Option<T>,
        what: &str,
    ) -> Read<T> {
        match rest.pick(read) {
            Some(value) => Ok(value),
            None => Err(self.missing_modifier(rest.head, what)),
        }
    }

    /// Demands that no modifier is left.
    pub(super) fn nothing_left(&mut self, rest: &Rest<'a>) -> Read<()> {
        match rest.left.first() {
            None => Ok(()),
            Some(at) => Err(self.unknown_modifier(rest.head, *at)),
        }
    }
}
