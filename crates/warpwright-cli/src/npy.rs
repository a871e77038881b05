//! `.npy`, the one-array file of NumPy: plain C-order arrays of numbers, in and out.

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use warpwright_ptx::DType;

use crate::checkpoint::safetensors::read_exact_at;
use crate::paths::Shown;

/// An array in memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Array {
    /// Element type. bfloat16 and 8-bit floats, which NumPy has no names for, are stored as `u2` and `u1`.
    pub dtype: DType,
    /// Shape; empty for a scalar.
    pub shape: Vec<u64>,
    /// The elements, little-endian.
    pub bytes: Vec<u8>,
}

/// A `.npy` file that cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("{}: {defect}", Shown(file))]
pub struct NpyError {
    /// The file.
    pub file: PathBuf,
    /// The defect.
    #[source]
    pub defect: NpyDefect,
}

/// A defect of a `.npy` file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NpyDefect {
    /// The system's reason.
    #[error("cannot {action}: {source}")]
    Io {
        /// The action that failed.
        action: &'static str,
        /// The reason.
        #[source]
        source: io::Error,
    },
    /// A pipe, a device or the like.
    #[error("is not a regular file")]
    NotAFile,
    /// The first bytes are others.
    #[error("is not an .npy file")]
    Magic,
    /// A version that is not known.
    #[error("has .npy version {0}.{1}, known are 1.0, 2.0 and 3.0")]
    Version(u8, u8),
    /// The header cannot be read.
    #[error("header: {0}")]
    Header(HeaderDefect),
    /// The type is none that kernels take.
    #[error("has elements of type '{0}'")]
    Type(String),
    /// Column-major.
    #[error("is in Fortran order")]
    Fortran,
    /// The shape has no size.
    #[error("shape {0:?} is too large")]
    Shape(Vec<u64>),
    /// Less or more data than the shape has.
    #[error("holds {holds} bytes of data, shape {shape:?} of {dtype} takes {needs}")]
    Length {
        /// The shape.
        shape: Vec<u64>,
        /// The type.
        dtype: DType,
        /// By shape.
        needs: u64,
        /// In the file.
        holds: u64,
    },
}

/// A defect of the header's text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeaderDefect {
    /// The file ends inside it.
    #[error("the file ends inside it")]
    Truncated,
    /// Something else where this was expected.
    #[error("expected {expected} at byte {at}")]
    Expected {
        /// The text that belongs there.
        expected: &'static str,
        /// Where.
        at: usize,
    },
    /// It is longer than any header.
    #[error("it is {length} bytes long, the limit is {limit}")]
    TooLong {
        /// The number in the file.
        length: u64,
        /// The most that is read.
        limit: u64,
    },
    /// A key is not there.
    #[error("'{0}' is missing")]
    Missing(&'static str),
}

impl NpyError {
    /// The user's remedy.
    pub fn help(&self) -> Option<String> {
        Some(match &self.defect {
            NpyDefect::Io { source, .. } if source.kind() == io::ErrorKind::NotFound => "check the path".to_owned(),
            NpyDefect::Io { .. } => return None,
            NpyDefect::NotAFile => "write the array to a file first".to_owned(),
            NpyDefect::Magic | NpyDefect::Version(..) | NpyDefect::Header(_) => {
                "write it with numpy.save(path, array)".to_owned()
            }
            NpyDefect::Type(_) => {
                "arrays may hold little-endian f2, f4, f8, u1 to u8 and i1 to i8; save bfloat16 as its u2 bits: \
                 array.view('<u2')"
                    .to_owned()
            }
            NpyDefect::Fortran => "save numpy.ascontiguousarray(array)".to_owned(),
            NpyDefect::Shape(_) | NpyDefect::Length { .. } => "the file was cut short or damaged: save it again".to_owned(),
        })
    }
}

impl From<HeaderDefect> for NpyDefect {
    fn from(defect: HeaderDefect) -> Self {
        Self::Header(defect)
    }
}

const MAGIC: &[u8; 6] = b"\x93NUMPY";
/// Bytes of a header; a shape of thirty thousand extents takes a tenth.
const MAX_HEADER: u64 = 1 << 20;
/// Bytes that are read of a file at once.
const CHUNK: usize = 4 << 20;

/// A `.npy` file whose header was read. The elements stay on disk until they are asked for, a chunk at a time.
#[derive(Debug)]
pub struct NpyFile {
    /// Element type; see [`Array::dtype`].
    pub dtype: DType,
    /// Shape; empty for a scalar.
    pub shape: Vec<u64>,
    /// Size of the elements.
    pub bytes: u64,
    path: PathBuf,
    file: File,
    /// Where the elements begin.
    start: u64,
}

impl NpyFile {
    /// Opens a file and checks its header and length.
    ///
    /// # Errors
    /// Its defect.
    pub fn open(path: &Path) -> Result<Self, NpyError> {
        let fail = |defect| NpyError { file: path.to_owned(), defect };
        let io = |action| move |source| fail(NpyDefect::Io { action, source });
        // Opening a pipe would wait for who writes to it.
        if !std::fs::metadata(path).map_err(io("open"))?.is_file() {
            return Err(fail(NpyDefect::NotAFile));
        }
        let file = File::open(path).map_err(io("open"))?;
        let length = file.metadata().map_err(io("open"))?.len();
        let Header { dtype, shape, bytes } = Header::read(io::BufReader::new(&file), length).map_err(fail)?;
        Ok(Self { dtype, shape, bytes, path: path.to_owned(), file, start: length - bytes })
    }

    /// Hands the elements over in order, with the offset of each part.
    ///
    /// # Errors
    /// The file cannot be read any more, or what `take` says.
    pub fn for_each_chunk<E: From<NpyError>>(
        &self,
        mut take: impl FnMut(u64, &[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut chunk = vec![0; CHUNK.min(usize::try_from(self.bytes).unwrap_or(CHUNK))];
        let mut at = 0;
        while at < self.bytes {
            let here = (self.bytes - at).min(CHUNK as u64);
            let chunk = &mut chunk[..here as usize];
            read_exact_at(&self.file, chunk, self.start + at)
                .map_err(|source| NpyDefect::Io { action: "read", source })
                .map_err(|defect| NpyError { file: self.path.clone(), defect })?;
            take(at, chunk)?;
            at += here;
        }
        Ok(())
    }
}

/// The facts of a header.
struct Header {
    dtype: DType,
    shape: Vec<u64>,
    bytes: u64,
}

impl Header {
    /// Reads it from the beginning of the `length` bytes of `source`, and holds the length against it.
    fn read(mut source: impl Read, length: u64) -> Result<Self, NpyDefect> {
        let mut start = [0u8; 8];
        source.read_exact(&mut start).map_err(|_| NpyDefect::Magic)?;
        if &start[..6] != MAGIC {
            return Err(NpyDefect::Magic);
        }
        let length_bytes = match (start[6], start[7]) {
            (1, 0) => 2,
            (2 | 3, 0) => 4,
            (major, minor) => return Err(NpyDefect::Version(major, minor)),
        };
        let mut field = [0u8; 4];
        source.read_exact(&mut field[..length_bytes]).map_err(|_| HeaderDefect::Truncated)?;
        let header_length = u64::from(u32::from_le_bytes(field));
        let holds =
            length.checked_sub(8 + length_bytes as u64 + header_length).ok_or(HeaderDefect::Truncated)?;
        // What a damaged field promises would be read in vain.
        if header_length > MAX_HEADER {
            return Err(HeaderDefect::TooLong { length: header_length, limit: MAX_HEADER }.into());
        }
        let read = |source| NpyDefect::Io { action: "read", source };
        let mut header = Vec::new();
        source.take(header_length).read_to_end(&mut header).map_err(read)?;
        let Fields { descr, fortran, shape } = Fields::parse(&header)?;
        let dtype = dtype_of(&descr).ok_or(NpyDefect::Type(descr))?;
        // The order means nothing where at most one extent is larger than one.
        if fortran && shape.iter().filter(|&&extent| extent > 1).count() > 1 {
            return Err(NpyDefect::Fortran);
        }
        let bytes = byte_count(dtype, &shape).ok_or_else(|| NpyDefect::Shape(shape.clone()))?;
        if bytes != holds {
            return Err(NpyDefect::Length { shape, dtype, needs: bytes, holds });
        }
        Ok(Self { dtype, shape, bytes })
    }
}

/// The beginning of a file, up to its elements.
pub fn header(dtype: DType, shape: &[u64]) -> Vec<u8> {
    let mut header = format!("{{'descr': '{}', 'fortran_order': False, 'shape': ", descr_of(dtype));
    header.push_str(&ShapeTuple(shape).to_string());
    header.push_str(", }");
    // The data starts at a multiple of 64 bytes; the header ends in a newline.
    let short = 6 + 2 + 2 + header.len() + 1;
    let (version, field) =
        if short.next_multiple_of(64) - 10 <= usize::from(u16::MAX) { (1, 2) } else { (2, 4) };
    let unpadded = 8 + field + header.len() + 1;
    header.extend(std::iter::repeat_n(' ', unpadded.next_multiple_of(64) - unpadded));
    header.push('\n');
    let mut out = MAGIC.to_vec();
    out.extend([version, 0]);
    out.extend(&(header.len() as u32).to_le_bytes()[..field]);
    out.extend_from_slice(header.as_bytes());
    out
}

impl Array {
    /// Reads a file.
    ///
    /// # Errors
    /// Its defect, or that it does not fit into memory.
    pub fn read(path: &Path) -> Result<Self, NpyError> {
        let file = NpyFile::open(path)?;
        let mut bytes = Vec::new();
        let room = usize::try_from(file.bytes).ok().and_then(|n| bytes.try_reserve_exact(n).ok());
        if room.is_none() {
            return Err(NpyError { file: file.path, defect: NpyDefect::Shape(file.shape) });
        }
        file.for_each_chunk(|_, chunk| -> Result<(), NpyError> {
            bytes.extend_from_slice(chunk);
            Ok(())
        })?;
        Ok(Self { dtype: file.dtype, shape: file.shape, bytes })
    }

    /// Reads an array from the `length` bytes of `source`.
    ///
    /// # Errors
    /// The defect.
    pub fn parse(mut source: impl Read, length: u64) -> Result<Self, NpyDefect> {
        let Header { dtype, shape, bytes: needs } = Header::read(&mut source, length)?;
        let mut bytes = Vec::new();
        let read = |source| NpyDefect::Io { action: "read", source };
        source.take(needs).read_to_end(&mut bytes).map_err(read)?;
        if bytes.len() as u64 != needs {
            return Err(NpyDefect::Length { shape, dtype, needs, holds: bytes.len() as u64 });
        }
        Ok(Self { dtype, shape, bytes })
    }

    /// The file's bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = header(self.dtype, &self.shape);
        out.extend_from_slice(&self.bytes);
        out
    }

    /// Number of elements.
    pub fn elements(&self) -> u64 {
        self.bytes.len() as u64 / self.dtype.bytes() as u64
    }
}

/// Bytes of an array; `None` if they do not fit 64 bits.
pub fn byte_count(dtype: DType, shape: &[u64]) -> Option<u64> {
    shape.iter().try_fold(dtype.bytes() as u64, |n, &extent| n.checked_mul(extent))
}

/// A shape as Python writes it.
struct ShapeTuple<'a>(&'a [u64]);

impl fmt::Display for ShapeTuple<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            [one] => write!(f, "({one},)"),
            all => {
                let all: Vec<_> = all.iter().map(u64::to_string).collect();
                write!(f, "({})", all.join(", "))
            }
        }
    }
}

const fn descr_of(dtype: DType) -> &'static str {
    match dtype {
        DType::F16 => "<f2",
        DType::F32 => "<f4",
        DType::F64 => "<f8",
        DType::U8 | DType::F8E4M3 | DType::F8E5M2 => "|u1",
        DType::I8 => "|i1",
        DType::U16 | DType::BF16 => "<u2",
        DType::I16 => "<i2",
        DType::U32 => "<u4",
        DType::I32 => "<i4",
        DType::U64 => "<u8",
        DType::I64 => "<i8",
    }
}

fn dtype_of(descr: &str) -> Option<DType> {
    let (order, name) = descr.split_at_checked(1)?;
    let dtype = match name {
        "b1" | "u1" => DType::U8,
        "i1" => DType::I8,
        "f2" => DType::F16,
        "f4" => DType::F32,
        "f8" => DType::F64,
        "u2" => DType::U16,
        "i2" => DType::I16,
        "u4" => DType::U32,
        "i4" => DType::I32,
        "u8" => DType::U64,
        "i8" => DType::I64,
        _ => return None,
    };
    let order_fits = match order {
        "<" | "|" => true,
        "=" => cfg!(target_endian = "little"),
        ">" => dtype.bytes() == 1,
        _ => false,
    };
    order_fits.then_some(dtype)
}

/// The header's dictionary.
struct Fields {
    descr: String,
    fortran: bool,
    shape: Vec<u64>,
}

impl Fields {
    fn parse(header: &[u8]) -> Result<Self, HeaderDefect> {
        let mut text = Cursor { text: header, at: 0 };
        let (mut descr, mut fortran, mut shape) = (None, None, None);
        text.expect(b'{', "a dictionary")?;
        while !text.take(b'}') {
            let key = text.string()?;
            text.expect(b':', "':'")?;
            match key {
                b"descr" => descr = Some(String::from_utf8_lossy(text.string()?).into_owned()),
                b"fortran_order" => fortran = Some(text.boolean()?),
                b"shape" => shape = Some(text.tuple()?),
                _ => return Err(text.wrong("one of descr, fortran_order, shape")),
            }
            if !text.take(b',') {
                text.expect(b'}', "',' or '}'")?;
                break;
            }
        }
        Ok(Self {
            descr: descr.ok_or(HeaderDefect::Missing("descr"))?,
            fortran: fortran.ok_or(HeaderDefect::Missing("fortran_order"))?,
            shape: shape.ok_or(HeaderDefect::Missing("shape"))?,
        })
    }
}

/// Reads the few Python literals that the header is made of.
struct Cursor<'a> {
    text: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    const fn wrong(&self, expected: &'static str) -> HeaderDefect {
        HeaderDefect::Expected { expected, at: self.at }
    }

    fn rest(&self) -> &'a [u8] {
        self.text.get(self.at..).unwrap_or_default()
    }

    fn skip_blanks(&mut self) {
        self.at += self.rest().iter().take_while(|b| b.is_ascii_whitespace()).count();
    }

    fn take(&mut self, byte: u8) -> bool {
        self.skip_blanks();
        let found = self.rest().first() == Some(&byte);
        self.at += usize::from(found);
        found
    }

    fn expect(&mut self, byte: u8, what: &'static str) -> Result<(), HeaderDefect> {
        if self.take(byte) { Ok(()) } else { Err(self.wrong(what)) }
    }

    fn string(&mut self) -> Result<&'a [u8], HeaderDefect> {
        self.skip_blanks();
        let Some((&quote @ (b'\'' | b'"'), rest)) = self.rest().split_first() else {
            return Err(self.wrong("a string"));
        };
        let length = rest.iter().position(|&b| b == quote).ok_or_else(|| self.wrong("a string that ends"))?;
        self.at += length + 2;
        Ok(&rest[..length])
    }

    fn boolean(&mut self) -> Result<bool, HeaderDefect> {
        self.skip_blanks();
        for (word, value) in [(&b"True"[..], true), (b"False", false)] {
            if self.rest().starts_with(word) {
                self.at += word.len();
                return Ok(value);
            }
        }
        Err(self.wrong("True or False"))
    }

    fn tuple(&mut self) -> Result<Vec<u64>, HeaderDefect> {
        self.expect(b'(', "a tuple")?;
        let mut extents = Vec::new();
        while !self.take(b')') {
            self.skip_blanks();
            let digits = self.rest().iter().take_while(|b| b.is_ascii_digit()).count();
            let extent = std::str::from_utf8(&self.rest()[..digits]).ok().and_then(|text| text.parse().ok());
            extents.push(extent.ok_or_else(|| self.wrong("an extent"))?);
            self.at += digits;
            // What Python 2 put behind long integers.
            if self.rest().first() == Some(&b'L') {
                self.at += 1;
            }
            if !self.take(b',') {
                self.expect(b')', "',' or ')'")?;
                break;
            }
        }
        Ok(extents)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(bytes: &[u8]) -> Result<Array, NpyDefect> {
        Array::parse(bytes, bytes.len() as u64)
    }

    fn with_header(header: &str, data: usize) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend([1, 0]);
        bytes.extend((header.len() as u16).to_le_bytes());
        bytes.extend(header.as_bytes());
        bytes.resize(bytes.len() + data, 7);
        bytes
    }

    #[test]
    fn every_type_and_rank_reads_back() {
        for &dtype in DType::ALL {
            for shape in [vec![], vec![3], vec![0, 2], vec![2, 3, 4]] {
                let length = usize::try_from(byte_count(dtype, &shape).unwrap()).unwrap();
                let array = Array { dtype, shape, bytes: (0..length).map(|i| i as u8).collect() };
                let bytes = array.to_bytes();
                assert_eq!((bytes.len() - array.bytes.len()) % 64, 0);
                let back = parse(&bytes).unwrap();
                assert_eq!((&back.shape, &back.bytes), (&array.shape, &array.bytes));
                let stored = match dtype {
                    DType::BF16 => DType::U16,
                    DType::F8E4M3 | DType::F8E5M2 => DType::U8,
                    _ => dtype,
                };
                assert_eq!(back.dtype, stored);
            }
        }
    }

    #[test]
    fn the_header_is_the_one_that_numpy_writes() {
        let array = Array { dtype: DType::F32, shape: vec![2], bytes: vec![0; 8] };
        let bytes = array.to_bytes();
        let expected = b"\x93NUMPY\x01\x00v\x00{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }";
        assert_eq!(&bytes[..expected.len()], expected);
        assert_eq!(bytes[127], b'\n');
        assert_eq!(bytes.len(), 136);
    }

    #[test]
    fn a_rank_beyond_version_one_takes_version_two() {
        let array = Array { dtype: DType::U8, shape: vec![1; 30_000], bytes: vec![5] };
        let bytes = array.to_bytes();
        assert_eq!(bytes[6], 2);
        assert_eq!(parse(&bytes).unwrap(), array);
    }

    #[test]
    fn every_defect_is_told_apart() {
        type Expect = fn(&NpyDefect) -> bool;
        let good = "{'descr': '<f4', 'fortran_order': False, 'shape': (2,)}";
        assert!(parse(&with_header(good, 8)).is_ok());
        let cases: Vec<(Vec<u8>, Expect)> = vec![
            (vec![], |d| matches!(d, NpyDefect::Magic)),
            (b"PK\x03\x04 a zip".to_vec(), |d| matches!(d, NpyDefect::Magic)),
            (b"\x93NUMPY\x09\x00".to_vec(), |d| matches!(d, NpyDefect::Version(9, 0))),
            (b"\x93NUMPY\x01\x00\xff".to_vec(), |d| matches!(d, NpyDefect::Header(HeaderDefect::Truncated))),
            (b"\x93NUMPY\x02\x00\xff\xff\xff\xff".to_vec(), |d| {
                matches!(d, NpyDefect::Header(HeaderDefect::Truncated))
            }),
            (with_header("[]", 0), |d| matches!(d, NpyDefect::Header(HeaderDefect::Expected { at: 0, .. }))),
            (with_header("{'descr': '<f4'", 0), |d| matches!(d, NpyDefect::Header(_))),
            (with_header("{'descr': '<f4'}", 0), |d| {
                matches!(d, NpyDefect::Header(HeaderDefect::Missing("fortran_order")))
            }),
            (with_header(&good.replace("(2,)", "(-2,)"), 8), |d| matches!(d, NpyDefect::Header(_))),
            (with_header(&good.replace("(2,)", "(99999999999999999999,)"), 8), |d| {
                matches!(d, NpyDefect::Header(_))
            }),
            (with_header(&good.replace("(2,)", "(5000000000,5000000000)"), 8), |d| {
                matches!(d, NpyDefect::Shape(_))
            }),
            (with_header(&good.replace("(2,)", "(5000000000,)"), 8), |d| {
                matches!(d, NpyDefect::Length { needs: 20_000_000_000, holds: 8, .. })
            }),
            (with_header(good, 9), |d| matches!(d, NpyDefect::Length { holds: 9, .. })),
            (with_header(&good.replace("<f4", ">f4"), 8), |d| matches!(d, NpyDefect::Type(t) if t == ">f4")),
            (with_header(&good.replace("'<f4'", "[('a', '<f4')]"), 8), |d| matches!(d, NpyDefect::Header(_))),
            (with_header(&good.replace("<f4", "<U9"), 8), |d| matches!(d, NpyDefect::Type(_))),
            (with_header(&good.replace("<f4", "é"), 8), |d| matches!(d, NpyDefect::Type(_))),
            (with_header("{'descr': '<f4', 'fortran_order': True, 'shape': (2, 2)}", 16), |d| {
                matches!(d, NpyDefect::Fortran)
            }),
        ];
        for (bytes, expected) in cases {
            let defect = parse(&bytes).unwrap_err();
            assert!(expected(&defect), "{defect:?} for {:?}", String::from_utf8_lossy(&bytes));
        }
    }

    #[test]
    fn fortran_order_of_a_vector_is_no_matter() {
        let bytes = with_header("{'descr': '<f4', 'fortran_order': True, 'shape': (2, 1)}", 8);
        assert_eq!(parse(&bytes).unwrap().shape, [2, 1]);
    }
}
