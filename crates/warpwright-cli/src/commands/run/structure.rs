//! Pointers that are no argument of their own: to an array that is named elsewhere, alone or in a structure.

use super::argument::{Reference, signed, unsigned};

/// An address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Pointer {
    /// None: 0.
    Null,
    /// In an array.
    To {
        /// Which.
        array: Reference,
        /// Bytes behind its start.
        offset: u64,
    },
}

impl Pointer {
    /// `x` or `x+64`
    ///
    /// # Errors
    /// The fault of the text.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let (array, offset) = text.split_once('+').unwrap_or((text, "0"));
        let offset = unsigned(offset).ok_or_else(|| format!("has an offset that is no number: {offset}"))?;
        Ok(Self::To { array: Reference::parse(array.trim())?, offset })
    }
}

/// The fields of a structure in their order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Structure {
    pub(super) fields: Vec<Field>,
}

/// A field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Field {
    /// The bytes of a number, aligned to their count.
    Number(Vec<u8>),
    /// An address of 8 bytes.
    Pointer(Pointer),
    /// So many bytes of zeros, not aligned.
    Padding(usize),
}

/// The largest parameter of a kernel in bytes.
const LARGEST: usize = 32764;

const FIELDS: &str =
    "fields are u8:N to u64:N, s8:N to s64:N, f32:X, f64:X, ptr:ARRAY+BYTES, null and pad:BYTES";

impl Structure {
    /// `u32:5,ptr:x+64,f32:0.5`
    ///
    /// # Errors
    /// The fault of the text.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let fields = text.split(',').map(|field| Field::parse(field.trim()));
        Ok(Self { fields: fields.collect::<Result<_, _>>()? })
    }

    /// The bytes as C lays the fields out; `address` gives those of pointers.
    pub(super) fn bytes(&self, mut address: impl FnMut(&Pointer) -> u64) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut largest = 1;
        for field in &self.fields {
            let value = match field {
                Field::Number(value) => value.clone(),
                Field::Pointer(pointer) => address(pointer).to_le_bytes().to_vec(),
                Field::Padding(count) => {
                    bytes.resize(bytes.len() + count, 0);
                    continue;
                }
            };
            largest = largest.max(value.len());
            bytes.resize(bytes.len().next_multiple_of(value.len()), 0);
            bytes.extend(value);
        }
        bytes.resize(bytes.len().next_multiple_of(largest), 0);
        bytes
    }
}

impl Field {
    fn parse(text: &str) -> Result<Self, String> {
        let wrong = || format!("has the field `{text}`; {FIELDS}");
        if text == "null" {
            return Ok(Self::Pointer(Pointer::Null));
        }
        let (kind, rest) = text.split_once(':').ok_or_else(wrong)?;
        let number = |size: u32, value: u64| Self::Number(value.to_le_bytes()[..size as usize].to_vec());
        let bits: Option<u32> = kind.get(1..).and_then(|bits| bits.parse().ok());
        match (kind.as_bytes().first(), bits) {
            (Some(b'u'), Some(bits @ (8 | 16 | 32 | 64))) => {
                let value = unsigned(rest).filter(|value| bits == 64 || value >> bits == 0);
                value.map(|value| number(bits / 8, value)).ok_or_else(wrong)
            }
            (Some(b's'), Some(bits @ (8 | 16 | 32 | 64))) => {
                let end = 1i64.checked_shl(bits - 1).filter(|end| *end > 0);
                let value = signed(rest).filter(|value| end.is_none_or(|end| (-end..end).contains(value)));
                value.map(|value| number(bits / 8, value.cast_unsigned())).ok_or_else(wrong)
            }
            (Some(b'f'), Some(32)) => {
                rest.trim().parse().map(|x: f32| Self::Number(x.to_le_bytes().to_vec())).map_err(|_| wrong())
            }
            (Some(b'f'), Some(64)) => {
                rest.trim().parse().map(|x: f64| Self::Number(x.to_le_bytes().to_vec())).map_err(|_| wrong())
            }
            _ if kind == "ptr" => Pointer::parse(rest).map(Self::Pointer),
            _ if kind == "pad" => {
                let count = rest.trim().parse().ok().filter(|count| *count <= LARGEST);
                count.map(Self::Padding).ok_or_else(wrong)
            }
            _ => Err(wrong()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_laid_out_as_in_c() {
        let parsed =
            Structure::parse("u8:255, u32:0x10,ptr:x+8,s16:-2,f32:1,null,pad:3,u8:7").expect("fields");
        let bytes = parsed.bytes(|pointer| match pointer {
            Pointer::Null => 0,
            Pointer::To { array, offset } => {
                assert_eq!(array, &Reference::Name("x".to_owned()));
                0x1000 + offset
            }
        });
        let mut expected = vec![255, 0, 0, 0, 16, 0, 0, 0];
        expected.extend(0x1008u64.to_le_bytes());
        expected.extend([0xfe, 0xff, 0, 0]);
        expected.extend(1f32.to_le_bytes());
        expected.extend([0; 8]);
        expected.extend([0, 0, 0, 7, 0, 0, 0, 0]);
        assert_eq!(bytes, expected);
        assert_eq!(Structure::parse("s64:-1").map(|s| s.bytes(|_| 0)), Ok(vec![0xff; 8]));
    }

    #[test]
    fn fields_that_are_none_are_named() {
        for bad in ["", "u8:256", "s8:128", "u24:1", "s64:x", "ptr:", "ptr:x+y", "pad:40000", "f16:1", "u32"]
        {
            let error = Structure::parse(bad).expect_err(bad);
            assert!(
                error.contains("field") || error.contains("array") || error.contains("offset"),
                "{error}"
            );
        }
        assert!(Structure::parse("s8:-128,s8:127,u64:18446744073709551615").is_ok());
    }
}
