//! Kernels of one PTX instruction with inputs and expected results, for any device that runs PTX.
//!
//! The kernels do nothing but load operands, execute the instruction under test and store what it gives. Which element
//! of a matrix a register of a lane holds, and where in shared memory it lies, is computed on the host from the formulas
//! of the PTX manual, one after the other as they stand there, so that nothing is shared with an implementation.
//!
//! This module needs nothing but `half`, so that the emulator's own tests can include it.

pub mod mma;
pub mod moves;
mod numbers;
pub mod wgmma;
pub mod wmma;

/// How the words of the result are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// 32 bits as they are.
    Bits,
    /// Two's complement.
    S32,
    /// Single precision.
    F32,
    /// Double precision.
    F64,
    /// Half precision.
    F16,
}

impl Format {
    /// Bytes of one number.
    pub const fn bytes(self) -> usize {
        match self {
            Self::F16 => 2,
            Self::Bits | Self::S32 | Self::F32 => 4,
            Self::F64 => 8,
        }
    }

    fn read(self, bytes: &[u8]) -> f64 {
        let mut word = [0; 8];
        word[..bytes.len()].copy_from_slice(bytes);
        let word = u64::from_le_bytes(word);
        match self {
            Self::Bits => word as f64,
            Self::S32 => f64::from(word as u32 as i32),
            Self::F32 => f64::from(f32::from_bits(word as u32)),
            Self::F64 => f64::from_bits(word),
            Self::F16 => half::f16::from_bits(word as u16).to_f64(),
        }
    }
}

/// A kernel, what it is given and what it has to give.
#[derive(Clone, Debug)]
pub struct PtxCase {
    /// The instruction and what is special about the operands.
    pub name: String,
    /// The module; its kernel is called `kernel`.
    pub ptx: String,
    /// Threads of the one block that runs it.
    pub threads: u32,
    /// Contents of the buffers whose addresses are the first parameters.
    pub inputs: Vec<Vec<u8>>,
    /// Bytes of the result buffer, whose address is the last parameter; it is filled with `0xA5` before the launch.
    pub result_bytes: usize,
    /// The format of the numbers of the result.
    pub format: Format,
    /// Expected numbers: place in the result (in numbers), value, and how far from it a result may be.
    pub expected: Vec<Expected>,
}

/// One number of a result.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Expected {
    /// Index in the result.
    pub index: usize,
    /// Value.
    pub value: f64,
    /// Largest difference.
    pub tolerance: f64,
}

/// Contents of a result buffer before the launch.
pub const POISON: u8 = 0xA5;

impl PtxCase {
    /// The first few numbers of a result that are wrong.
    pub fn differences(&self, result: &[u8]) -> Vec<String> {
        let size = self.format.bytes();
        self.expected
            .iter()
            .filter_map(|e| {
                let bytes = result.get(e.index * size..(e.index + 1) * size)?;
                let got = self.format.read(bytes);
                let near = got == e.value
                    || (got - e.value).abs() <= e.tolerance
                    || (got.is_nan() && e.value.is_nan());
                (!near).then(|| {
                    format!(
                        "{}: number {}: got {got}, want {} +- {}",
                        self.name, e.index, e.value, e.tolerance
                    )
                })
            })
            .take(4)
            .collect()
    }
}

/// The head of a module.
fn module(version: &str, target: &str, pointers: &[&str], body: &str) -> String {
    let parameters: Vec<String> = pointers.iter().map(|p| format!(".param .u64 {p}")).collect();
    format!(
        ".version {version}\n.target {target}\n.address_size 64\n.visible .entry kernel({})\n{{\n{body}    ret;\n}}\n",
        parameters.join(", ")
    )
}

/// `{prefix0, prefix1, ...}`
fn list(prefix: &str, registers: std::ops::Range<usize>) -> String {
    let names: Vec<String> = registers.map(|i| format!("{prefix}{i}")).collect();
    format!("{{{}}}", names.join(", "))
}
