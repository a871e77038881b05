//! Tokens.
//!
//! Dots bind to the name that follows them, so an opcode is a word and a run of dotted names: `ld` `.global` `.f32`.
//! The lexer never fails; what is no token comes out as [`Kind::Bad`] and the parser says so.

/// Kind of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A name: opcode, register, variable, label.
    Word,
    /// `.name`, with `::` parts; the text is without the dot.
    Dot,
    /// A literal that starts with a digit.
    Number,
    /// A quoted string, with its quotes.
    Quoted,
    /// A single character.
    Punct(u8),
    /// Nothing that PTX knows.
    Bad,
    /// The end of the text.
    End,
}

/// A token and where it starts.
#[derive(Clone, Copy, Debug)]
pub(super) struct Token<'a> {
    pub(super) kind: Kind,
    pub(super) text: &'a str,
    /// From 1.
    pub(super) line: u32,
    /// In bytes, from 1.
    pub(super) column: u32,
}

impl Token<'_> {
    pub(super) fn is(&self, punct: u8) -> bool {
        self.kind == Kind::Punct(punct)
    }

    /// Length in the text, the dot of a dotted name included.
    pub(super) fn len(&self) -> u32 {
        let dot = usize::from(self.kind == Kind::Dot);
        u32::try_from(self.text.len() + dot).unwrap_or(u32::MAX)
    }

    /// The token as a message shows it.
    pub(super) fn shown(&self) -> String {
        const LONGEST: usize = 40;
        match self.kind {
            Kind::End => "the end of the text".to_owned(),
            _ => {
                let dot = if self.kind == Kind::Dot { "." } else { "" };
                match self.text.char_indices().nth(LONGEST) {
                    Some((cut, _)) => format!("`{dot}{}...`", &self.text[..cut]),
                    None => format!("`{dot}{}`", self.text),
                }
            }
        }
    }
}

/// Reads tokens one by one; a copy is a checkpoint.
#[derive(Clone, Copy)]
pub(super) struct Lexer<'a> {
    text: &'a str,
    at: usize,
    line: u32,
    line_start: usize,
    /// Line and column of a comment that ran into the end of the text.
    pub(super) open_comment: Option<(u32, u32)>,
}

/// The parts of tokens that a byte can be; a set of the bits below.
const CLASS: [u8; 256] = {
    let mut class = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let b = byte as u8;
        if b.is_ascii_alphabetic() {
            class[byte] = WORD_START | WORD;
        } else if b.is_ascii_digit() {
            class[byte] = WORD | DIGIT;
        } else if matches!(b, b'_' | b'$') {
            class[byte] = WORD_START | WORD;
        } else if matches!(b, b' ' | b'\t' | b'\r' | b'\x0b' | b'\x0c') {
            class[byte] = SPACE;
        } else if matches!(
            b,
            b'{' | b'}'
                | b'['
                | b']'
                | b'('
                | b')'
                | b'<'
                | b'>'
                | b','
                | b';'
                | b':'
                | b'|'
                | b'!'
                | b'@'
                | b'+'
                | b'-'
                | b'='
                | b'*'
                | b'/'
                | b'%'
                | b'&'
                | b'^'
                | b'~'
                | b'?'
        ) {
            class[byte] = PUNCT;
        }
        byte += 1;
    }
    class
};
const WORD_START: u8 = 1;
const WORD: u8 = 2;
const DIGIT: u8 = 4;
const SPACE: u8 = 8;
const PUNCT: u8 = 16;

const fn class(byte: u8) -> u8 {
    CLASS[byte as usize]
}

const fn is_word_start(byte: u8) -> bool {
    class(byte) & WORD_START != 0 || byte == b'%'
}

const fn is_word(byte: u8) -> bool {
    class(byte) & WORD != 0
}

impl<'a> Lexer<'a> {
    pub(super) const fn new(text: &'a str) -> Self {
        Self { text, at: 0, line: 1, line_start: 0, open_comment: None }
    }

    fn byte(&self, at: usize) -> u8 {
        self.text.as_bytes().get(at).copied().unwrap_or(0)
    }

    fn newline(&mut self, at: usize) {
        self.line = self.line.saturating_add(1);
        self.line_start = at + 1;
    }

    fn column(&self, at: usize) -> u32 {
        u32::try_from(at - self.line_start + 1).unwrap_or(u32::MAX)
    }

    fn skip_space(&mut self) {
        let bytes = self.text.as_bytes();
        while let Some(&byte) = bytes.get(self.at) {
            match byte {
                _ if class(byte) & SPACE != 0 => {}
                b'\n' => self.newline(self.at),
                b'/' if self.byte(self.at + 1) == b'/' => {
                    self.at = bytes[self.at..]
                        .iter()
                        .position(|b| *b == b'\n')
                        .map_or(bytes.len(), |n| self.at + n);
                    continue;
                }
                b'/' if self.byte(self.at + 1) == b'*' => {
                    self.block_comment();
                    continue;
                }
                _ => return,
            }
            self.at += 1;
        }
    }

    fn block_comment(&mut self) {
        let bytes = self.text.as_bytes();
        let (line, column) = (self.line, self.column(self.at));
        self.at += 2;
        while let Some(&byte) = bytes.get(self.at) {
            if byte == b'*' && self.byte(self.at + 1) == b'/' {
                self.at += 2;
                return;
            }
            if byte == b'\n' {
                self.newline(self.at);
            }
            self.at += 1;
        }
        self.open_comment = Some((line, column));
    }

    /// The end of the run of bytes from `at` that satisfy `accept`.
    fn run(&self, at: usize, accept: impl Fn(u8) -> bool) -> usize {
        let rest = self.text.as_bytes().get(at..).unwrap_or_default();
        at + rest.iter().position(|b| !accept(*b)).unwrap_or(rest.len())
    }

    /// The next token; [`Kind::End`] for ever once the text is used up.
    pub(super) fn next(&mut self) -> Token<'a> {
        self.skip_space();
        let start = self.at;
        let column = self.column(start);
        let line = self.line;
        let (kind, from, to) = self.scan(start);
        self.at = to;
        Token { kind, text: &self.text[from..to], line, column }
    }

    /// Kind, start of the text and end of the token at `start`.
    fn scan(&mut self, start: usize) -> (Kind, usize, usize) {
        let Some(&first) = self.text.as_bytes().get(start) else {
            return (Kind::End, start, start);
        };
        match first {
            b if class(b) & WORD_START != 0 => (Kind::Word, start, self.run(start + 1, is_word)),
            b'%' if is_word(self.byte(start + 1)) => (Kind::Word, start, self.run(start + 1, is_word)),
            b'.' => {
                let mut end = self.run(start + 1, is_word);
                if end == start + 1 {
                    return (Kind::Bad, start, end);
                }
                while self.byte(end) == b':' && self.byte(end + 1) == b':' && is_word(self.byte(end + 2)) {
                    end = self.run(end + 2, is_word);
                }
                (Kind::Dot, start + 1, end)
            }
            b if class(b) & DIGIT != 0 => (Kind::Number, start, self.number(start)),
            b'"' => {
                let end = self.run(start + 1, |b| b != b'"' && b != b'\n');
                if self.byte(end) == b'"' { (Kind::Quoted, start, end + 1) } else { (Kind::Bad, start, end) }
            }
            b if class(b) & PUNCT != 0 => (Kind::Punct(first), start, start + 1),
            // One whole character, so that the text can be cut here.
            _ => (Kind::Bad, start, self.run(start + 1, |b| b & 0xC0 == 0x80)),
        }
    }

    fn number(&self, start: usize) -> usize {
        let prefixed =
            self.byte(start) == b'0' && matches!(self.byte(start + 1) | 0x20, b'x' | b'f' | b'd' | b'b');
        let mut end = start;
        if !prefixed {
            end = self.run(end, |b| b.is_ascii_digit());
            if self.byte(end) == b'.' && !is_word_start(self.byte(end + 1)) {
                end = self.run(end + 1, |b| b.is_ascii_digit());
            }
            if self.byte(end) | 0x20 == b'e' {
                let sign = usize::from(matches!(self.byte(end + 1), b'+' | b'-'));
                if self.byte(end + 1 + sign).is_ascii_digit() {
                    end = self.run(end + 1 + sign, |b| b.is_ascii_digit());
                }
            }
        }
        self.run(end, is_word)
    }
}

/// The value of a literal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Literal {
    /// Any integer form.
    Int(u64),
    /// The same with the suffix `U`.
    Unsigned(u64),
    /// `0f...`
    F32(u32),
    /// `0d...`
    F64(u64),
    /// A decimal fraction or exponent, as the bits of the nearest double.
    Decimal(u64),
}

/// Reads a literal, or says what is wrong with it.
pub(super) fn literal(text: &str) -> Result<Literal, &'static str> {
    let radix = |digits: &str, radix: u32| {
        let (digits, make): (_, fn(u64) -> Literal) = match digits.strip_suffix(['U', 'u']) {
            Some(digits) => (digits, Literal::Unsigned),
            None => (digits, Literal::Int),
        };
        // `from_str_radix` takes a sign, which cannot stand in the middle of a token.
        if digits.is_empty() || !digits.chars().all(|c| c.is_digit(radix)) {
            return Err("malformed integer");
        }
        u64::from_str_radix(digits, radix).map(make).map_err(|_| "integer does not fit in 64 bits")
    };
    let bits = |digits: &str, len: usize, message| {
        if digits.len() == len && digits.bytes().all(|b| b.is_ascii_hexdigit()) {
            u64::from_str_radix(digits, 16).map_err(|_| message)
        } else {
            Err(message)
        }
    };
    match text.as_bytes() {
        // Most literals: short decimals.
        [b'0'] => Ok(Literal::Int(0)),
        [b'1'..=b'9', rest @ ..] if rest.len() < 19 && rest.iter().all(u8::is_ascii_digit) => {
            Ok(Literal::Int(text.bytes().fold(0, |n, digit| n * 10 + u64::from(digit - b'0'))))
        }
        [b'0', b'x' | b'X', ..] => radix(&text[2..], 16),
        [b'0', b'b' | b'B', ..] => radix(&text[2..], 2),
        [b'0', b'f' | b'F', ..] => bits(&text[2..], 8, "`0f` takes exactly 8 hexadecimal digits")
            .map(|v| Literal::F32(u32::try_from(v).unwrap_or(0))),
        [b'0', b'd' | b'D', ..] => {
            bits(&text[2..], 16, "`0d` takes exactly 16 hexadecimal digits").map(Literal::F64)
        }
        _ if text.bytes().any(|b| matches!(b, b'.' | b'e' | b'E')) => {
            let value: f64 = text.parse().map_err(|_| "malformed number")?;
            if value.is_finite() { Ok(Literal::Decimal(value.to_bits())) } else { Err("number is too large") }
        }
        [b'0', b'0'..=b'9', ..] => radix(text, 8),
        _ => radix(text, 10),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens(text: &str) -> Vec<(Kind, &str, u32, u32)> {
        let mut lexer = Lexer::new(text);
        std::iter::from_fn(|| {
            let t = lexer.next();
            (t.kind != Kind::End).then_some((t.kind, t.text, t.line, t.column))
        })
        .collect()
    }

    #[test]
    fn opcodes_split_at_dots() {
        let kinds = tokens("@!%p1 ld.L2::128B.v4.f32 {_}, [%rd1+-0x4]; // x\n /* \n */ .version 7.8");
        let texts: Vec<&str> = kinds.iter().map(|t| t.1).collect();
        let expected = [
            "@", "!", "%p1", "ld", "L2::128B", "v4", "f32", "{", "_", "}", ",", "[", "%rd1", "+", "-", "0x4",
            "]", ";", "version", "7.8",
        ];
        assert_eq!(texts, expected);
        assert_eq!(kinds[4].0, Kind::Dot);
        assert_eq!(kinds[18], (Kind::Dot, "version", 3, 5));
    }

    #[test]
    fn a_percent_sign_starts_a_name_or_is_an_operator() {
        let kinds: Vec<Kind> = tokens("%r1 7 % 3 %3 % x").into_iter().map(|t| t.0).collect();
        let remainder = Kind::Punct(b'%');
        assert_eq!(
            kinds,
            [Kind::Word, Kind::Number, remainder, Kind::Number, Kind::Word, remainder, Kind::Word]
        );
    }

    #[test]
    fn what_is_no_token_is_bad_and_whole() {
        assert_eq!(
            tokens("a \u{e9}#b"),
            [
                (Kind::Word, "a", 1, 1),
                (Kind::Bad, "\u{e9}", 1, 3),
                (Kind::Bad, "#", 1, 5),
                (Kind::Word, "b", 1, 6),
            ]
        );
        assert_eq!(tokens("\"open\n1"), [(Kind::Bad, "\"open", 1, 1), (Kind::Number, "1", 2, 1)]);
        assert_eq!(tokens(". x")[0].0, Kind::Bad);
    }

    #[test]
    fn literals() {
        let int = |v| Ok(Literal::Int(v));
        assert_eq!(literal("017"), int(15));
        assert_eq!(literal("0"), int(0));
        assert_eq!(literal("0b101"), int(5));
        assert_eq!(literal("0xfFU"), Ok(Literal::Unsigned(255)));
        assert_eq!(literal("18446744073709551615"), int(u64::MAX));
        assert_eq!(literal("0f3F800000"), Ok(Literal::F32(0x3F80_0000)));
        assert_eq!(literal("0d3FF0000000000000"), Ok(Literal::F64(1f64.to_bits())));
        assert_eq!(literal("1.5e-3"), Ok(Literal::Decimal(1.5e-3f64.to_bits())));
        for bad in [
            "0f3F80",
            "0f3F8000000",
            "0d0",
            "0x",
            "0xG",
            "09",
            "12ab",
            "0b2",
            "18446744073709551616",
            "1e999",
        ] {
            assert!(literal(bad).is_err(), "{bad}");
        }
    }
}
