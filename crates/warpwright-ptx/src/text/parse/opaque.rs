//! Instructions that are kept as text.

use super::operands::{Named, is_special};
use super::{Parser, Read, rules};
use crate::inst::*;
use crate::text::lex::{Kind, Token};

/// The most tokens that the operands of an unknown instruction may have.
const MAX_TOKENS: usize = 1024;

impl<'a> Parser<'a> {
    /// The operands up to `;`, when the opcode could not be read. `Err` if they mention what is not declared or do not
    /// end.
    pub(super) fn opaque(&mut self, head: Token<'a>, modifiers: &[Token<'a>]) -> Read<Inst> {
        let mut opcode = head.text.to_owned();
        for modifier in modifiers {
            opcode.push('.');
            opcode.push_str(modifier.text);
        }
        let mut pieces: Vec<Piece> = Vec::new();
        let mut depth = 0usize;
        for _ in 0..MAX_TOKENS {
            let at = self.token;
            match at.kind {
                Kind::Punct(b';') if depth == 0 => {
                    return Ok(Inst::Opaque(Box::new(Opaque {
                        family: Foreign::from_name(head.text),
                        opcode,
                        operands: pieces,
                    })));
                }
                Kind::Punct(b'{' | b'[' | b'(') => depth += 1,
                Kind::Punct(b'}' | b']' | b')') if depth > 0 => depth -= 1,
                Kind::Punct(b'}' | b']' | b')' | b';' | b'@' | b'=')
                | Kind::Bad
                | Kind::End
                | Kind::Quoted => {
                    return Err(self.unexpected("`;`"));
                }
                _ => {}
            }
            let piece = self.piece()?;
            match (piece, pieces.last_mut()) {
                (Piece::Text(text), Some(Piece::Text(before))) => before.push_str(&text),
                (piece, _) => pieces.push(piece),
            }
        }
        Err(self.fail_here(rules::LIMIT, "the operands of an unknown instruction are too long"))
    }

    fn piece(&mut self) -> Read<Piece> {
        let at = self.advance();
        Ok(match at.kind {
            Kind::Word => match self.declared(at)? {
                Some(Named::Reg(reg)) => Piece::Reg(reg),
                Some(Named::Symbol(symbol)) => Piece::Symbol(symbol),
                _ if at.text.starts_with('%') && !is_special(at.text) => {
                    return Err(self.fail(rules::NAME, at, format!("{} is not declared", at.shown())));
                }
                _ => Piece::Text(at.text.to_owned()),
            },
            Kind::Dot => Piece::Text(format!(".{}", at.text)),
            Kind::Punct(b',') => Piece::Text(", ".to_owned()),
            _ => Piece::Text(at.text.to_owned()),
        })
    }
}
