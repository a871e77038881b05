//! The devices of this machine, and in words why CUDA is not used where it is not.

use std::fmt;

use warpwright_ptx::PtxVersion;

use crate::backend::cuda;

/// The CUDA version that a driver implements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DriverVersion {
    /// Major number.
    pub major: u16,
    /// Minor number.
    pub minor: u16,
}

impl DriverVersion {
    /// The oldest driver that this crate works with: the first with every function that it calls.
    pub const MINIMUM: Self = Self { major: 11, minor: 4 };

    /// From the number that `cuDriverGetVersion` returns, such as 12080.
    pub(crate) fn from_number(number: i32) -> Self {
        let number = u32::try_from(number).unwrap_or(0);
        let part = |n: u32| u16::try_from(n).unwrap_or(u16::MAX);
        Self { major: part(number / 1000), minor: part(number % 1000 / 10) }
    }

    /// The newest PTX version that such a driver compiles; `None` for a major version that is not known yet.
    pub const fn ptx_version(self) -> Option<PtxVersion> {
        match (self.major, self.minor) {
            (11, minor) => Some(PtxVersion::new(7, minor)),
            // CUDA 12.6 came without a new PTX version, and the numbers run one behind from there.
            (12, minor) if minor < 6 => Some(PtxVersion::new(8, minor)),
            (12, minor) => Some(PtxVersion::new(8, minor - 1)),
            (13, minor) => Some(PtxVersion::new(9, minor)),
            _ => None,
        }
    }
}

impl fmt::Display for DriverVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CUDA {}.{}", self.major, self.minor)
    }
}

/// Why no CUDA device can be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CudaUnavailable {
    /// The driver's library is not installed or not on the loader's path.
    #[error("no driver library (libcuda.so, nvcuda.dll) was found")]
    NoLibrary,
    /// The driver is older than this crate needs.
    #[error("the driver implements {found}, {} or later is needed", DriverVersion::MINIMUM)]
    DriverTooOld {
        /// The version that it implements.
        found: DriverVersion,
    },
    /// The driver is there but does not start.
    #[error("the driver does not start: {call} returned {name} ({code}): {description}")]
    Init {
        /// The function.
        call: &'static str,
        /// The number of the error.
        code: u32,
        /// Its name.
        name: String,
        /// The driver's sentence about it.
        description: String,
    },
    /// The driver is there and sees no GPU.
    #[error("the driver ({driver}) sees no device; CUDA_VISIBLE_DEVICES may hide one")]
    NoDevice {
        /// The version that it implements.
        driver: DriverVersion,
    },
}

/// A GPU as the driver describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CudaDeviceInfo {
    /// Its number, for [`Device::cuda`](crate::Device::cuda).
    pub ordinal: u32,
    /// Its name.
    pub name: String,
    /// Compute capability, 90 for 9.0.
    pub sm: u32,
    /// Streaming multiprocessors.
    pub multiprocessors: u32,
    /// Bytes of memory.
    pub memory: u64,
}

/// Everything that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Discovery {
    /// The driver's version, if there is a driver that starts.
    pub driver: Option<DriverVersion>,
    /// Its devices.
    pub devices: Vec<CudaDeviceInfo>,
    /// Why CUDA cannot be used, if it cannot.
    pub unavailable: Option<CudaUnavailable>,
}

impl fmt::Display for Discovery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(driver) = self.driver {
            match driver.ptx_version() {
                Some(ptx) => writeln!(f, "driver: {driver}, reads PTX up to {ptx}")?,
                None => writeln!(f, "driver: {driver}")?,
            }
        }
        for d in &self.devices {
            let gib = d.memory as f64 / f64::from(1 << 30);
            writeln!(
                f,
                "cuda:{}: {}, sm_{}, {} multiprocessors, {gib:.1} GiB",
                d.ordinal, d.name, d.sm, d.multiprocessors
            )?;
        }
        if let Some(why) = &self.unavailable {
            writeln!(f, "cuda: not used: {why}")?;
        }
        write!(f, "emulator: always available")
    }
}

/// Looks for the driver and its devices. Creates no context, and never panics.
pub fn discover() -> Discovery {
    let version = match cuda::start_driver() {
        Ok(version) => version,
        Err(why) => return Discovery { driver: None, devices: Vec::new(), unavailable: Some(why) },
    };
    let devices = match cuda::list_devices() {
        Ok(devices) => devices,
        Err(why) => return Discovery { driver: Some(version), devices: Vec::new(), unavailable: Some(why) },
    };
    let unavailable = devices.is_empty().then_some(CudaUnavailable::NoDevice { driver: version });
    Discovery { driver: Some(version), devices, unavailable }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ptx_versions_follow_the_driver() {
        let cases = [
            (11040, Some((7, 4))),
            (11080, Some((7, 8))),
            (12000, Some((8, 0))),
            (12050, Some((8, 5))),
            (12060, Some((8, 5))),
            (12080, Some((8, 7))),
            (12090, Some((8, 8))),
            (13000, Some((9, 0))),
            (13010, Some((9, 1))),
            (15000, None),
        ];
        for (number, ptx) in cases {
            let got = DriverVersion::from_number(number).ptx_version();
            assert_eq!(got, ptx.map(|(major, minor)| PtxVersion::new(major, minor)), "{number}");
        }
        assert_eq!(DriverVersion::from_number(-1), DriverVersion { major: 0, minor: 0 });
    }

    #[test]
    fn discovery_says_why() {
        let found = discover();
        assert_eq!(found.devices.is_empty(), found.unavailable.is_some());
        assert!(found.to_string().contains("emulator"), "{found}");
    }
}
