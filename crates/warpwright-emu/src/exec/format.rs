//! Formats of `vprintf`: the specifiers of C that CUDA supports.

use std::io::Write as _;

/// A piece of a format.
pub(super) enum Piece<'a> {
    /// Bytes that are printed as they are.
    Text(&'a [u8]),
    /// A place for an argument.
    Value(Spec),
}

/// `%[flags][width][.precision][length]conversion`
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Spec {
    left: bool,
    plus: bool,
    space: bool,
    alternative: bool,
    zeros: bool,
    width: usize,
    precision: Option<usize>,
    /// The width is an argument of its own.
    pub(super) width_argument: bool,
    pub(super) precision_argument: bool,
    /// Bytes of an integer argument that count.
    integer_bytes: u32,
    conversion: u8,
}

/// The largest width or precision.
const MAX_WIDTH: usize = 4096;

/// Takes a format apart. What is no specifier is text.
pub(super) fn pieces(format: &[u8]) -> Vec<Piece<'_>> {
    let mut out = Vec::new();
    let (mut start, mut at) = (0, 0);
    while at < format.len() {
        if format[at] != b'%' {
            at += 1;
            continue;
        }
        out.push(Piece::Text(&format[start..at]));
        if format.get(at + 1) == Some(&b'%') {
            (start, at) = (at + 1, at + 2);
            continue;
        }
        match Spec::parse(&format[at + 1..]) {
            Some((spec, used)) => {
                out.push(Piece::Value(spec));
                at += 1 + used;
                start = at;
            }
            None => (start, at) = (at, at + 1),
        }
    }
    out.push(Piece::Text(&format[start..]));
    out
}

impl Spec {
    /// Reads a specifier behind its `%`; also the number of bytes that it has.
    fn parse(text: &[u8]) -> Option<(Self, usize)> {
        let mut spec = Self { integer_bytes: 4, ..Self::default() };
        let mut at = 0;
        loop {
            match text.get(at)? {
                b'-' => spec.left = true,
                b'+' => spec.plus = true,
                b' ' => spec.space = true,
                b'#' => spec.alternative = true,
                b'0' => spec.zeros = true,
                _ => break,
            }
            at += 1;
        }
        let number = |at: &mut usize| {
            let mut value = 0usize;
            while let Some(digit) = text.get(*at).filter(|b| b.is_ascii_digit()) {
                value = (value * 10 + usize::from(digit - b'0')).min(MAX_WIDTH);
                *at += 1;
            }
            value
        };
        if text.get(at) == Some(&b'*') {
            (spec.width_argument, at) = (true, at + 1);
        } else {
            spec.width = number(&mut at);
        }
        if text.get(at) == Some(&b'.') {
            at += 1;
            if text.get(at) == Some(&b'*') {
                (spec.precision_argument, at) = (true, at + 1);
            } else {
                spec.precision = Some(number(&mut at));
            }
        }
        let lengths: [(&[u8], u32); 7] =
            [(b"hh", 1), (b"ll", 8), (b"h", 2), (b"l", 8), (b"j", 8), (b"z", 8), (b"t", 8)];
        if let Some((length, bytes)) = lengths.iter().find(|(l, _)| text[at..].starts_with(l)) {
            (spec.integer_bytes, at) = (*bytes, at + length.len());
        }
        spec.conversion = *text.get(at)?;
        b"diuoxXcsSpfFeEgGaA".contains(&spec.conversion).then_some((spec, at + 1))
    }

    pub(super) fn set_width(&mut self, width: i32) {
        self.left |= width < 0;
        self.width = (width.unsigned_abs() as usize).min(MAX_WIDTH);
    }

    pub(super) fn set_precision(&mut self, precision: i32) {
        self.precision = usize::try_from(precision).ok().map(|p| p.min(MAX_WIDTH));
    }

    /// Bytes of the argument.
    pub(super) fn bytes(&self) -> u32 {
        match self.conversion {
            b'd' | b'i' | b'u' | b'o' | b'x' | b'X' => self.integer_bytes.max(4),
            b'c' => 4,
            _ => 8,
        }
    }

    pub(super) fn is_string(&self) -> bool {
        matches!(self.conversion, b's' | b'S')
    }

    /// Writes a value; `string` is what a string argument points to.
    pub(super) fn write(&self, value: u64, string: Option<&[u8]>, out: &mut Vec<u8>) {
        let body = |text: String| text.into_bytes();
        let (prefix, digits, number) = match self.conversion {
            b'd' | b'i' => {
                let shift = 64 - 8 * self.integer_bytes;
                let signed = ((value << shift) as i64) >> shift;
                (self.sign(signed < 0), body(self.padded(signed.unsigned_abs().to_string())), true)
            }
            b'u' => (String::new(), body(self.padded(self.cut(value).to_string())), true),
            b'o' => (String::new(), body(self.padded(format!("{:o}", self.cut(value)))), true),
            b'x' | b'X' => {
                let value = self.cut(value);
                let upper = self.conversion == b'X';
                let digits = if upper { format!("{value:X}") } else { format!("{value:x}") };
                let prefix = if !self.alternative || value == 0 {
                    ""
                } else if upper {
                    "0X"
                } else {
                    "0x"
                };
                (prefix.to_owned(), body(self.padded(digits)), true)
            }
            b'c' => (String::new(), vec![value as u8], false),
            b's' | b'S' => {
                let bytes = string.unwrap_or(b"(null)");
                let n = self.precision.map_or(bytes.len(), |p| p.min(bytes.len()));
                (String::new(), bytes[..n].to_vec(), false)
            }
            b'p' => (String::new(), body(format!("0x{value:x}")), false),
            _ => {
                let x = f64::from_bits(value);
                let finite = x.is_finite();
                (self.sign(x.is_sign_negative()), body(self.float(x.abs())), finite)
            }
        };
        let used = prefix.len() + digits.len();
        let fill = self.width.saturating_sub(used);
        // A precision of an integer switches zeros off.
        let integer = matches!(self.conversion, b'd' | b'i' | b'u' | b'o' | b'x' | b'X');
        let zeros = self.zeros && !self.left && number && !(integer && self.precision.is_some());
        if !self.left && !zeros {
            out.resize(out.len() + fill, b' ');
        }
        out.extend_from_slice(prefix.as_bytes());
        if zeros {
            out.resize(out.len() + fill, b'0');
        }
        out.extend_from_slice(&digits);
        if self.left {
            out.resize(out.len() + fill, b' ');
        }
    }

    /// The bytes of an unsigned argument that count.
    fn cut(&self, value: u64) -> u64 {
        value & (u64::MAX >> (64 - 8 * self.integer_bytes))
    }

    fn sign(&self, negative: bool) -> String {
        let sign = if negative {
            "-"
        } else if self.plus {
            "+"
        } else if self.space {
            " "
        } else {
            ""
        };
        sign.to_owned()
    }

    /// Digits of an integer, at least as many as the precision says.
    fn padded(&self, digits: String) -> String {
        match self.precision {
            Some(0) if digits == "0" => String::new(),
            Some(p) => format!("{digits:0>p$}"),
            None => digits,
        }
    }

    /// A magnitude in the notation of the conversion.
    fn float(&self, x: f64) -> String {
        let upper = self.conversion.is_ascii_uppercase();
        let text = if x.is_nan() {
            "nan".to_owned()
        } else if x.is_infinite() {
            "inf".to_owned()
        } else {
            let precision = self.precision.unwrap_or(6);
            match self.conversion.to_ascii_lowercase() {
                b'f' => {
                    format!("{x:.precision$}") + if self.alternative && precision == 0 { "." } else { "" }
                }
                b'e' => exponential(x, precision),
                b'g' => self.general(x, precision.max(1)),
                _ => hexadecimal(x, self.precision),
            }
        };
        if upper { text.to_uppercase() } else { text }
    }

    /// `%g`: the shorter of both notations, without trailing zeros.
    fn general(&self, x: f64, precision: usize) -> String {
        let scientific = exponential(x, precision - 1);
        let exponent: i32 = scientific.rsplit_once('e').and_then(|(_, e)| e.parse().ok()).unwrap_or(0);
        let (mantissa, tail) = if exponent < -4 || exponent >= precision as i32 {
            let (mantissa, tail) = scientific.split_at(scientific.find('e').unwrap_or(scientific.len()));
            (mantissa.to_owned(), tail.to_owned())
        } else {
            let digits = (precision as i32 - 1 - exponent).max(0) as usize;
            (format!("{x:.digits$}"), String::new())
        };
        if self.alternative || !mantissa.contains('.') {
            return mantissa + &tail;
        }
        format!("{}{tail}", mantissa.trim_end_matches('0').trim_end_matches('.'))
    }
}

/// `1.500000e+03`
fn exponential(x: f64, precision: usize) -> String {
    let text = format!("{x:.precision$e}");
    let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{mantissa}e{sign}{:02}", exponent.unsigned_abs())
}

/// `0x1.8p+1`; digits beyond the precision are rounded to even.
fn hexadecimal(x: f64, precision: Option<usize>) -> String {
    let bits = x.to_bits();
    let (mut lead, mut exponent) = (1u64, (bits >> 52) as i32 - 1023);
    let mut fraction = bits & ((1 << 52) - 1);
    if bits >> 52 == 0 {
        (lead, exponent) = (0, if fraction == 0 { 0 } else { -1022 });
    }
    let mut digits = 13;
    if let Some(p) = precision.filter(|p| *p < 13) {
        let drop = 4 * (13 - p) as u32;
        let whole = lead << 52 | fraction;
        let (kept, rest, half) = (whole >> drop, whole & ((1 << drop) - 1), 1u64 << (drop - 1));
        let rounded = kept + u64::from(rest > half || (rest == half && kept & 1 == 1));
        (lead, fraction, digits) = (rounded >> (4 * p), rounded & ((1 << (4 * p)) - 1), p);
    }
    let mut out = Vec::new();
    // Writing to a vector does not fail.
    let _ = write!(out, "0x{lead}");
    let mut text = if digits == 0 { String::new() } else { format!("{fraction:0digits$x}") };
    match precision {
        None => text.truncate(text.trim_end_matches('0').len()),
        Some(p) => text.extend(std::iter::repeat_n('0', p.saturating_sub(13))),
    }
    if !text.is_empty() {
        let _ = write!(out, ".{text}");
    }
    let _ = write!(out, "p{}{}", if exponent < 0 { '-' } else { '+' }, exponent.unsigned_abs());
    String::from_utf8_lossy(&out).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn print(format: &str, values: &[u64]) -> String {
        let mut values = values.iter().copied();
        let mut out = Vec::new();
        for piece in pieces(format.as_bytes()) {
            match piece {
                Piece::Text(text) => out.extend_from_slice(text),
                Piece::Value(mut spec) => {
                    if spec.width_argument {
                        spec.set_width(values.next().unwrap() as i32);
                    }
                    if spec.precision_argument {
                        spec.set_precision(values.next().unwrap() as i32);
                    }
                    spec.write(values.next().unwrap(), Some(b"text"), &mut out);
                }
            }
        }
        String::from_utf8(out).unwrap()
    }

    // What the printf of glibc writes for the same formats.
    #[test]
    fn integers() {
        assert_eq!(
            print("%d|%5d|%-5d|%05d|%+d|% d", &[u64::from(u32::MAX), 42, 42, 42, 42, 42]),
            "-1|   42|42   |00042|+42| 42"
        );
        assert_eq!(
            print("%u %x %X %#x %o %#X", &[0xFFFF_FFFF, 255, 255, 255, 8, 255]),
            "4294967295 ff FF 0xff 10 0XFF"
        );
        assert_eq!(
            print("%lld %llu %ld %hd %hhu %zu", &[u64::MAX, u64::MAX, 7, 0x1_FFFF, 0x1FF, 9]),
            "-1 18446744073709551615 7 -1 255 9"
        );
        assert_eq!(print("%.3d|%8.3d|%08.3d|%.0d", &[5, 5, 5, 0]), "005|     005|     005|");
        assert_eq!(print("%*d|%-*d|%c%%", &[4, 7, 4, 7, 65]), "   7|7   |A%");
    }

    #[test]
    fn floats() {
        let bits = |x: f64| x.to_bits();
        assert_eq!(
            print("%f %.2f %8.3f|%-8.1f|%08.2f", &[1.5, 2.345, 1.0, 2.25, -3.5].map(bits)),
            "1.500000 2.35    1.000|2.2     |-0003.50"
        );
        assert_eq!(
            print("%e %.2E %e", &[1500.0, 0.00012, 0.0].map(bits)),
            "1.500000e+03 1.20E-04 0.000000e+00"
        );
        assert_eq!(
            print("%g %g %g %g %.3g %#g", &[100000.0, 1e6, 0.0001, 0.00001, 1234.5, 1.0].map(bits)),
            "100000 1e+06 0.0001 1e-05 1.23e+03 1.00000"
        );
        assert_eq!(
            print("%a %a %.1a %a", &[1.0, 0.1, 1.96875, 0.0].map(bits)),
            "0x1p+0 0x1.999999999999ap-4 0x2.0p+0 0x0p+0"
        );
        assert_eq!(
            print("%f %5g|%-5F|%05f", &[f64::NAN, f64::INFINITY, f64::NEG_INFINITY, f64::INFINITY].map(bits)),
            "nan   inf|-INF |  inf"
        );
    }

    #[test]
    fn strings_pointers_and_what_is_no_specifier() {
        assert_eq!(print("%s|%6s|%-6s|%.2s", &[1, 1, 1, 1]), "text|  text|text  |te");
        assert_eq!(print("%p", &[0x12ab]), "0x12ab");
        assert_eq!(print("100%, %y", &[]), "100%, %y");
        assert_eq!(print("%", &[]), "%");
    }
}
