//! The engines' kernels on a real or emulated device.

use warpwright_ops::Operation;
use warpwright_ops::quantize::nested::{
    self, DequantizeNestedArgs, DequantizeNestedDesc, QuantizeNestedArgs,
};
use warpwright_ops::quantize::{
    DequantizeArgs, DequantizeDesc, QuantizeArgs, QuantizeDesc, Scheme, groups as group_count, packed_bytes,
};
use warpwright_ptx::DType;
use warpwright_runtime::{Device, HostBuffer, Stream, Tensor};

use super::kernels::{GroupBuffers, Groups, Kernels, Lane, Method, NestedScales};
use crate::checkpoint::floats;
use crate::error::Error;

/// Runs the engines' kernels on a device.
#[derive(Debug)]
pub struct DeviceKernels {
    device: Device,
}

impl DeviceKernels {
    /// On streams of their own, one for each lane.
    pub fn new(device: &Device) -> Self {
        Self { device: device.clone() }
    }
}

impl Kernels for DeviceKernels {
    fn lane(&self) -> Result<Box<dyn Lane + '_>, Error> {
        Ok(Box::new(DeviceLane { stream: self.device.new_stream()? }))
    }
}

/// A stream of the device. Its copies wait for the stream alone, so that copies and kernels of several lanes overlap.
struct DeviceLane {
    stream: Stream,
}

impl DeviceLane {
    fn input(&self, bytes: &[u8], dtype: DType) -> Result<Tensor, Error> {
        let mut tensor = self.output(dtype, bytes.len() / dtype.bytes())?;
        self.stream.copy_to_device(tensor.buffer_mut(), 0, bytes)?;
        Ok(tensor)
    }

    fn input_f32(&self, values: &[f32]) -> Result<Tensor, Error> {
        self.input(&floats::f32_bytes(values), DType::F32)
    }

    fn output(&self, dtype: DType, len: usize) -> Result<Tensor, Error> {
        Ok(Tensor::empty_on(&self.stream, dtype, &[len])?)
    }

    fn bytes(&self, tensor: &Tensor) -> Result<Vec<u8>, Error> {
        let mut bytes = vec![0; tensor.len() * tensor.dtype().bytes()];
        self.stream.copy_to_host(&mut bytes, tensor.buffer(), 0)?;
        Ok(bytes)
    }
}

/// No longer than the tensor: one group is one group, and a group size has to fit the kernels' index type.
fn group_size(scheme: Scheme, group_size: u32, len: usize) -> usize {
    let whole = usize::try_from(group_size).unwrap_or(usize::MAX);
    // The blocks of bitsandbytes stay powers of two, which have the faster kernels.
    if matches!(scheme, Scheme::Nf4 | Scheme::Fp4) { whole } else { whole.min(len.max(1)) }
}

impl Lane for DeviceLane {
    fn host(&self, bytes: usize) -> Result<HostBuffer, Error> {
        Ok(self.stream.device().alloc_host(bytes)?)
    }

    fn quantize(
        &mut self,
        x: &[u8],
        dtype: DType,
        method: Method,
        out: &mut GroupBuffers,
    ) -> Result<(), Error> {
        let len = x.len() / dtype.bytes();
        let Method { scheme, order, .. } = method;
        let group_size = group_size(scheme, method.group_size, len);
        let groups = group_count(len, group_size);
        let x = self.input(x, dtype)?;
        let mut codes = self.output(DType::U8, packed_bytes(len))?;
        let mut scales = self.output(DType::F32, groups)?;
        let mut zero_points =
            if scheme.has_zero_points() { Some(self.output(DType::U8, groups)?) } else { None };
        QuantizeDesc { scheme, dtype, group_size, order, len }.plan(self.stream.device().target())?.launch(
            &self.stream,
            QuantizeArgs {
                x: x.as_ref(),
                codes: codes.as_mut(),
                scales: scales.as_mut(),
                zero_points: zero_points.as_mut().map(Tensor::as_mut),
            },
        )?;
        let packed = out.codes.fit(self, packed_bytes(len))?;
        self.stream.copy_to_host(packed, codes.buffer(), 0)?;
        out.scales = scales.to_vec_on(&self.stream)?;
        out.zero_points = zero_points.map_or_else(|| Ok(Vec::new()), |z| self.bytes(&z))?;
        Ok(())
    }

    fn dequantize(
        &mut self,
        groups: Groups<'_>,
        dtype: DType,
        method: Method,
        values: &mut [u8],
    ) -> Result<(), Error> {
        let Method { scheme, order, .. } = method;
        let elements = values.len() / dtype.bytes();
        let group_size = group_size(scheme, method.group_size, elements);
        let codes = self.input(groups.codes, DType::U8)?;
        // Integer formats of f64 tensors have f64 scales, which hold the stored f32 ones exactly.
        let scales = match scheme.scale_dtype(dtype) {
            DType::F64 => {
                let wide: Vec<u8> =
                    groups.scales.iter().flat_map(|scale| f64::from(*scale).to_le_bytes()).collect();
                self.input(&wide, DType::F64)?
            }
            _ => self.input_f32(groups.scales)?,
        };
        let zero_points =
            if scheme.has_zero_points() { Some(self.input(groups.zero_points, DType::U8)?) } else { None };
        let mut y = self.output(dtype, elements)?;
        DequantizeDesc { scheme, dtype, group_size, order, len: elements }
            .plan(self.stream.device().target())?
            .launch(
                &self.stream,
                DequantizeArgs {
                    codes: codes.as_ref(),
                    scales: scales.as_ref(),
                    zero_points: zero_points.as_ref().map(Tensor::as_ref),
                    y: y.as_mut(),
                },
            )?;
        Ok(self.stream.copy_to_host(values, y.buffer(), 0)?)
    }

    fn nest(&mut self, scales: &[f32]) -> Result<NestedScales, Error> {
        let len = scales.len();
        let absmax = self.input_f32(scales)?;
        let mut codes = self.output(DType::U8, len)?;
        let mut nested_absmax = self.output(DType::F32, group_count(len, nested::BLOCK))?;
        let mut offset = self.output(DType::F32, 1)?;
        let mut workspace = self.output(DType::F64, nested::workspace_len())?;
        nested::QuantizeNestedDesc { len }.plan(self.stream.device().target())?.launch(
            &self.stream,
            QuantizeNestedArgs {
                absmax: absmax.as_ref(),
                codes: codes.as_mut(),
                nested_absmax: nested_absmax.as_mut(),
                offset: offset.as_mut(),
                workspace: workspace.as_mut(),
            },
        )?;
        let offset = offset.to_vec_on::<f32>(&self.stream)?.first().copied().unwrap_or(0.0);
        Ok(NestedScales {
            codes: self.bytes(&codes)?,
            absmax: nested_absmax.to_vec_on(&self.stream)?,
            offset,
        })
    }

    fn unnest(&mut self, nested: &NestedScales) -> Result<Vec<f32>, Error> {
        let len = nested.codes.len();
        let codes = self.input(&nested.codes, DType::U8)?;
        let nested_absmax = self.input_f32(&nested.absmax)?;
        let offset = self.input_f32(&[nested.offset])?;
        let mut absmax = self.output(DType::F32, len)?;
        DequantizeNestedDesc { len }.plan(self.stream.device().target())?.launch(
            &self.stream,
            DequantizeNestedArgs {
                codes: codes.as_ref(),
                nested_absmax: nested_absmax.as_ref(),
                offset: offset.as_ref(),
                absmax: absmax.as_mut(),
            },
        )?;
        Ok(absmax.to_vec_on(&self.stream)?)
    }
}
