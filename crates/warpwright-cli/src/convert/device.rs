//! The engines' kernels on a real or emulated device.

use warpwright_ops::Operation;
use warpwright_ops::quantise::nested::{
    self, DequantizeNestedArgs, DequantizeNestedDesc, QuantizeNestedArgs,
};
use warpwright_ops::quantise::{
    DequantizeArgs, DequantizeDesc, QuantizeArgs, QuantizeDesc, Scheme, groups as group_count, packed_bytes,
};
use warpwright_ptx::DType;
use warpwright_runtime::{Device, Stream, Tensor};

use super::floats;
use super::kernels::{Groups, Kernels, Method, NestedScales};
use crate::error::Error;

/// Runs the engines' kernels on a device.
#[derive(Debug)]
pub struct DeviceKernels {
    device: Device,
    stream: Stream,
}

impl DeviceKernels {
    /// On the device's own stream.
    ///
    /// # Errors
    /// The device's.
    pub fn new(device: &Device) -> Result<Self, Error> {
        Ok(Self { device: device.clone(), stream: device.stream()? })
    }

    fn input(&self, bytes: &[u8], dtype: DType) -> Result<Tensor, Error> {
        Ok(Tensor::from_bytes(&self.device, dtype, bytes, &[bytes.len() / dtype.bytes()])?)
    }

    fn output(&self, dtype: DType, len: usize) -> Result<Tensor, Error> {
        Ok(Tensor::empty(&self.device, dtype, &[len])?)
    }
}

/// No longer than the tensor: one group is one group, and a group size has to fit the kernels' index type.
fn group_size(scheme: Scheme, group_size: u32, len: usize) -> usize {
    let whole = usize::try_from(group_size).unwrap_or(usize::MAX);
    // The blocks of bitsandbytes stay powers of two, which have the faster kernels.
    if matches!(scheme, Scheme::Nf4 | Scheme::Fp4) { whole } else { whole.min(len.max(1)) }
}

impl Kernels for DeviceKernels {
    fn quantise(&mut self, bytes: &[u8], dtype: DType, method: Method) -> Result<Groups, Error> {
        let len = bytes.len() / dtype.bytes();
        let Method { scheme, order, .. } = method;
        let group_size = group_size(scheme, method.group_size, len);
        let groups = group_count(len, group_size);
        let x = self.input(bytes, dtype)?;
        let mut codes = self.output(DType::U8, packed_bytes(len))?;
        let mut scales = self.output(DType::F32, groups)?;
        let mut zero_points =
            if scheme.has_zero_points() { Some(self.output(DType::U8, groups)?) } else { None };
        QuantizeDesc { scheme, dtype, group_size, order, len }.plan(self.device.target())?.launch(
            &self.stream,
            QuantizeArgs {
                x: x.as_ref(),
                codes: codes.as_mut(),
                scales: scales.as_mut(),
                zero_points: zero_points.as_mut().map(Tensor::as_mut),
            },
        )?;
        Ok(Groups {
            codes: codes.to_bytes()?,
            scales: scales.to_vec()?,
            zero_points: zero_points.map_or_else(|| Ok(Vec::new()), |z| z.to_bytes())?,
        })
    }

    fn dequantise(
        &mut self,
        groups: &Groups,
        elements: usize,
        dtype: DType,
        method: Method,
    ) -> Result<Vec<u8>, Error> {
        let Method { scheme, order, .. } = method;
        let group_size = group_size(scheme, method.group_size, elements);
        let codes = self.input(&groups.codes, DType::U8)?;
        // Integer formats of f64 tensors have f64 scales, which hold the stored f32 ones exactly.
        let scales = match scheme.scale_dtype(dtype) {
            DType::F64 => {
                let mut wide = Vec::with_capacity(groups.scales.len() * 8);
                groups.scales.iter().for_each(|scale| floats::push(&mut wide, f64::from(*scale), DType::F64));
                self.input(&wide, DType::F64)?
            }
            narrow => self.input(&floats::f32_bytes(&groups.scales), narrow)?,
        };
        let zero_points =
            if scheme.has_zero_points() { Some(self.input(&groups.zero_points, DType::U8)?) } else { None };
        let mut y = self.output(dtype, elements)?;
        DequantizeDesc { scheme, dtype, group_size, order, len: elements }
            .plan(self.device.target())?
            .launch(
                &self.stream,
                DequantizeArgs {
                    codes: codes.as_ref(),
                    scales: scales.as_ref(),
                    zero_points: zero_points.as_ref().map(Tensor::as_ref),
                    y: y.as_mut(),
                },
            )?;
        Ok(y.to_bytes()?)
    }

    fn nest(&mut self, scales: &[f32]) -> Result<NestedScales, Error> {
        let len = scales.len();
        let absmax = Tensor::from_slice(&self.device, scales, &[len])?;
        let mut codes = self.output(DType::U8, len)?;
        let mut nested_absmax = self.output(DType::F32, group_count(len, nested::BLOCK))?;
        let mut offset = self.output(DType::F32, 1)?;
        let mut workspace = self.output(DType::F64, nested::workspace_len())?;
        nested::QuantizeNestedDesc { len }.plan(self.device.target())?.launch(
            &self.stream,
            QuantizeNestedArgs {
                absmax: absmax.as_ref(),
                codes: codes.as_mut(),
                nested_absmax: nested_absmax.as_mut(),
                offset: offset.as_mut(),
                workspace: workspace.as_mut(),
            },
        )?;
        let offset = offset.to_vec::<f32>()?.first().copied().unwrap_or(0.0);
        Ok(NestedScales { codes: codes.to_bytes()?, absmax: nested_absmax.to_vec()?, offset })
    }

    fn unnest(&mut self, nested: &NestedScales) -> Result<Vec<f32>, Error> {
        let len = nested.codes.len();
        let codes = self.input(&nested.codes, DType::U8)?;
        let nested_absmax = Tensor::from_slice(&self.device, &nested.absmax, &[nested.absmax.len()])?;
        let offset = Tensor::from_slice(&self.device, &[nested.offset], &[1])?;
        let mut absmax = self.output(DType::F32, len)?;
        DequantizeNestedDesc { len }.plan(self.device.target())?.launch(
            &self.stream,
            DequantizeNestedArgs {
                codes: codes.as_ref(),
                nested_absmax: nested_absmax.as_ref(),
                offset: offset.as_ref(),
                absmax: absmax.as_mut(),
            },
        )?;
        Ok(absmax.to_vec()?)
    }
}
