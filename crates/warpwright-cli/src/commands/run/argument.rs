//! The arguments of a kernel as they are written on the command line.

use std::path::{Path, PathBuf};

use warpwright_ptx::{ArgValue, DType, TensorElement, TensorMap, TensorSwizzle};

use super::structure::{Pointer, Structure};
use crate::error::Error;
use crate::npy::{NpyFile, byte_count};
use crate::paths::Shown;

/// An argument.
#[derive(Debug)]
pub(super) enum Argument {
    /// A number, passed by value.
    Number(ArgValue),
    /// An array, passed by address.
    Array(ArrayArgument),
    /// The address of an array that is named elsewhere, or nothing.
    Pointer(Pointer),
    /// Fields as C lays them out, passed by value.
    Structure(Structure),
    /// A tensor map over an array that stands before it or has a name.
    Map {
        /// Which array.
        array: Reference,
        /// The map; its base is not known yet.
        map: TensorMap,
    },
}

/// An array as arguments name it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Reference {
    /// Of those that stand before it among the arguments, counted from 0.
    Number(usize),
    /// Of those that `--array` names.
    Name(String),
}

impl Reference {
    /// # Errors
    /// The text is empty.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        match text.parse() {
            Ok(number) => Ok(Self::Number(number)),
            Err(_) if text.is_empty() => Err("names no array".to_owned()),
            Err(_) => Ok(Self::Name(text.to_owned())),
        }
    }
}

impl std::fmt::Display for Reference {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Number(number) => number.fmt(f),
            Self::Name(name) => f.write_str(name),
        }
    }
}

/// An array and which way it goes.
#[derive(Debug)]
pub(super) struct ArrayArgument {
    /// Its name in findings.
    pub(super) label: String,
    /// Its elements, or its type and shape alone.
    pub(super) contents: Contents,
    /// The file that it is read from.
    input: Option<PathBuf>,
    /// Where it goes after the run.
    pub(super) output: Option<PathBuf>,
}

/// The elements of an array before the run.
#[derive(Debug)]
pub(super) enum Contents {
    /// The elements of a file.
    Given(NpyFile),
    /// Nothing.
    Fresh {
        /// Element type.
        dtype: DType,
        /// Shape.
        shape: Vec<u64>,
        /// Size.
        bytes: u64,
    },
}

impl ArrayArgument {
    /// Reads what stands behind `in`, `out` or `inout`, and the file that it names; `wrong` makes an error of a reason.
    ///
    /// # Errors
    /// It is no such array, or the file cannot be read.
    pub(super) fn parse(kind: &str, rest: &str, wrong: &dyn Fn(&str) -> Error) -> Result<Self, Error> {
        let array = |path: &str, contents, output: Option<&str>| {
            let label =
                Path::new(path).file_name().map_or(path.into(), |name| Shown(Path::new(name)).to_string());
            let input = matches!(contents, Contents::Given(_)).then(|| path.into());
            Ok(Self { label, contents, input, output: output.map(PathBuf::from) })
        };
        match kind {
            "in" => array(rest, Contents::Given(NpyFile::open(Path::new(rest))?), None),
            "inout" => {
                let (input, output) =
                    rest.rsplit_once(':').ok_or_else(|| wrong("needs a file to read and one to write"))?;
                array(input, Contents::Given(NpyFile::open(Path::new(input))?), Some(output))
            }
            _ => {
                let mut parts = rest.rsplitn(3, ':');
                let (shape, dtype, path) = (parts.next(), parts.next(), parts.next());
                let (Some(shape), Some(dtype), Some(path)) = (shape, dtype, path) else {
                    return Err(wrong("needs a file, a type and a shape"));
                };
                let dtype = DType::from_name(dtype).ok_or_else(|| wrong("has an unknown type"))?;
                let shape =
                    parse_shape(shape).ok_or_else(|| wrong("has a shape that is not a list of extents"))?;
                let bytes = byte_count(dtype, &shape)
                    .filter(|bytes| i64::try_from(*bytes).is_ok())
                    .ok_or_else(|| wrong("is too large"))?;
                array(path, Contents::Fresh { dtype, shape, bytes }, Some(path))
            }
        }
    }

    /// The file that it is read from.
    pub(super) fn input(&self) -> Option<&Path> {
        self.input.as_deref()
    }
}

impl Contents {
    /// Its size in bytes.
    pub(super) fn len(&self) -> u64 {
        match self {
            Self::Given(file) => file.bytes,
            Self::Fresh { bytes, .. } => *bytes,
        }
    }

    /// Its element type and shape.
    pub(super) fn layout(&self) -> (DType, &[u64]) {
        match self {
            Self::Given(file) => (file.dtype, &file.shape),
            Self::Fresh { dtype, shape, .. } => (*dtype, shape),
        }
    }
}

const FORMS: &str = "in:FILE.npy, out:FILE.npy:DTYPE:SHAPE, inout:FILE.npy:OUT.npy, u32:N, s32:N, u64:N, s64:N, f32:X, f64:X, null, \
                     ptr:ARRAY+BYTES, struct:FIELD,FIELD,... or tensormap:ARRAY:DTYPE:DIMS:STRIDES:BOX:SWIZZLE";

impl Argument {
    /// Reads an argument and the file that it names.
    ///
    /// # Errors
    /// It is none of the forms, or the file cannot be read.
    pub(super) fn parse(text: &str) -> Result<Self, Error> {
        let wrong =
            |why: &str| Error::usage(format!("--arg {text}: {why}"), format!("an argument is {FORMS}"));
        if text == "null" {
            return Ok(Self::Pointer(Pointer::Null));
        }
        let (kind, rest) = text.split_once(':').ok_or_else(|| wrong("has no kind"))?;
        let number =
            |value: Option<ArgValue>| value.map(Self::Number).ok_or_else(|| wrong("is no such number"));
        match kind {
            "in" | "out" | "inout" => ArrayArgument::parse(kind, rest, &wrong).map(Self::Array),
            "ptr" => Pointer::parse(rest).map(Self::Pointer).map_err(|why| wrong(&why)),
            "struct" => Structure::parse(rest).map(Self::Structure).map_err(|why| wrong(&why)),
            "tensormap" => parse_map(rest).map_err(|why| wrong(&why)),
            "u32" => number(unsigned(rest).and_then(|v| u32::try_from(v).ok()).map(ArgValue::U32)),
            "u64" => number(unsigned(rest).map(ArgValue::U64)),
            "s32" => number(signed(rest).and_then(|v| i32::try_from(v).ok()).map(ArgValue::S32)),
            "s64" => number(signed(rest).map(ArgValue::S64)),
            "f32" => number(rest.trim().parse().ok().map(ArgValue::F32)),
            "f64" => number(rest.trim().parse().ok().map(ArgValue::F64)),
            _ => Err(wrong("is of no known kind")),
        }
    }
}

/// Advice about a tensor map that does not fit.
pub(super) const MAP_HINT: &str = "lists go from the innermost dimension outwards, joined by x; strides are bytes, one less than \
                        dimensions, and may be left empty for a dense tensor";

/// Bytes from the first to behind the last element.
pub(super) fn map_bytes(map: &TensorMap) -> Option<u64> {
    let mut last = map.dims.first()?.checked_mul(map.element.bytes())?;
    for (extent, stride) in map.dims.iter().skip(1).zip(&map.strides) {
        last = last.checked_add(extent.checked_sub(1)?.checked_mul(*stride)?)?;
    }
    Some(last)
}

/// `0:bf16:128x64:256:64x64:128B`
fn parse_map(text: &str) -> Result<Argument, String> {
    let parts: Vec<&str> = text.split(':').map(str::trim).collect();
    let [array, dtype, dims, strides, extents, swizzle] = parts[..] else {
        return Err("needs ARRAY:DTYPE:DIMS:STRIDES:BOX:SWIZZLE".to_owned());
    };
    let array = Reference::parse(array)?;
    let element = TensorElement::from_name(dtype).ok_or_else(|| {
        let names: Vec<&str> = TensorElement::ALL.iter().map(|e| e.name()).collect();
        format!("has an unknown type; there are {}", names.join(", "))
    })?;
    let list = |what: &str, text: &str| {
        parse_shape(text).ok_or_else(|| format!("has {what} that are no list of numbers: {text}"))
    };
    let dims = list("dimensions", dims)?;
    let small = |n: &u64| u32::try_from(*n).map_err(|_| "has a box that is too large".to_owned());
    let extents = list("box extents", extents)?.iter().map(small).collect::<Result<Vec<_>, _>>()?;
    let swizzle = TensorSwizzle::from_name(swizzle)
        .ok_or_else(|| format!("has an unknown swizzle {swizzle}; there are none, 32B, 64B, 128B"))?;
    let mut map = TensorMap::dense(0, element, &dims, &extents, swizzle);
    if !strides.is_empty() {
        map.strides = list("strides", strides)?;
    }
    Ok(Argument::Map { array, map })
}

/// `128,64`, or nothing for a single number.
fn parse_shape(text: &str) -> Option<Vec<u64>> {
    if text.trim().is_empty() {
        return Some(Vec::new());
    }
    text.split([',', 'x']).map(|extent| extent.trim().parse().ok()).collect()
}

pub(super) fn unsigned(text: &str) -> Option<u64> {
    let text = text.trim();
    text.strip_prefix("0x").map_or_else(|| text.parse().ok(), |digits| u64::from_str_radix(digits, 16).ok())
}

pub(super) fn signed(text: &str) -> Option<i64> {
    let text = text.trim();
    match text.strip_prefix('-') {
        Some(digits) => 0i64.checked_sub_unsigned(unsigned(digits)?),
        None => i64::try_from(unsigned(text)?).ok(),
    }
}

#[cfg(test)]
mod tests {
    use warpwright_ptx::TensorMode;

    use super::super::arguments::Arguments;
    use super::*;

    fn number(text: &str) -> Option<ArgValue> {
        match Argument::parse(text) {
            Ok(Argument::Number(value)) => Some(value),
            _ => None,
        }
    }

    #[test]
    fn numbers_are_read_in_their_range() {
        assert_eq!(number("u32:5"), Some(ArgValue::U32(5)));
        assert_eq!(number("u32:0xffffffff"), Some(ArgValue::U32(u32::MAX)));
        assert_eq!(number("s32:-2147483648"), Some(ArgValue::S32(i32::MIN)));
        assert_eq!(number("s64:-0x8000000000000000"), Some(ArgValue::S64(i64::MIN)));
        assert_eq!(number("u64:18446744073709551615"), Some(ArgValue::U64(u64::MAX)));
        assert_eq!(number("f32:-0.5"), Some(ArgValue::F32(-0.5)));
        assert_eq!(number("f64:1e300"), Some(ArgValue::F64(1e300)));
        for bad in [
            "u32:4294967296",
            "u32:-1",
            "s32:2147483648",
            "u64:x",
            "f32:",
            "u32:--1",
            "s32:--1",
            "u8:1",
            "5",
            "",
        ] {
            assert_eq!(number(bad), None, "{bad}");
        }
    }

    fn check(texts: &[&str]) -> Result<(), Error> {
        let texts: Vec<String> = texts.iter().map(|text| (*text).to_owned()).collect();
        Arguments::read(&texts, &[]).map(drop)
    }

    #[test]
    fn tensor_maps_are_read_and_held_against_their_array() {
        let Ok(Argument::Map { array, map }) = Argument::parse("tensormap:1:bf16:128x64:512:64x8:128B")
        else {
            panic!("no map")
        };
        assert_eq!(array, Reference::Number(1));
        assert_eq!(
            (&map.dims[..], &map.strides[..], &map.mode),
            (&[128, 64][..], &[512][..], &TensorMode::Tiled { box_dims: vec![64, 8] })
        );
        assert_eq!((map.element, map.swizzle), (TensorElement::BF16, TensorSwizzle::B128));
        assert_eq!(map_bytes(&map), Some(63 * 512 + 256));
        let Ok(Argument::Map { map, .. }) = Argument::parse("tensormap:0:f32:16,4,2::8,4,1:none") else {
            panic!("no map")
        };
        assert_eq!(map.strides, [64, 256]);
        for bad in [
            "tensormap:0:f32:16:::none",
            "tensormap:0:f32:16",
            "tensormap:x:f32:16::16:none",
            "tensormap:0:f31:16::16:none",
            "tensormap:0:f32:a::16:none",
            "tensormap:0:f32:16::16:256B",
            "tensormap:0:f32:16::5000000000:none",
        ] {
            assert!(check(&[bad]).is_err(), "{bad}");
        }
        let array = "out:y.npy:f32:16,4";
        assert!(check(&[array, "tensormap:0:f32:16x4::8x4:none"]).is_ok());
        assert!(check(&["tensormap:0:f32:16x4::8x4:none", array]).is_err());
        assert!(check(&[array, "tensormap:1:f32:16x4::8x4:none"]).is_err());
        assert!(check(&[array, "tensormap:0:f32:16x5::8x4:none"]).is_err());
        assert!(check(&[array, "tensormap:0:f32:16x4:60:8x4:none"]).is_err());
    }

    #[test]
    fn outputs_have_a_type_and_a_shape() {
        let Ok(Argument::Array(array)) = Argument::parse("out:a:b/y.npy:bf16:2,3") else {
            panic!("no array")
        };
        assert_eq!(array.output.as_deref(), Some(Path::new("a:b/y.npy")));
        assert_eq!(array.label, "y.npy");
        assert_eq!(array.input, None);
        assert_eq!((array.contents.layout(), array.contents.len()), ((DType::BF16, &[2, 3][..]), 12));
        for bad in ["out:y.npy", "out:y.npy:f32", "out:y.npy:f33:1", "out:y.npy:f32:a", "out:y.npy:f32:-1"] {
            assert!(Argument::parse(bad).is_err(), "{bad}");
        }
        assert!(Argument::parse("out:y.npy:f32:5000000000,5000000000").is_err());
        assert!(Argument::parse("inout:x.npy").is_err());
    }
}
