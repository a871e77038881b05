//! The layers [`Conv1d`] and [`Conv2d`], with the names and constructors of `candle_nn::conv`.

use candle_core::{Module, Result, Tensor};
use candle_nn::VarBuilder;
pub use candle_nn::{Conv1dConfig, Conv2dConfig};

use crate::ops;

macro_rules! layers {
    ($($layer:ident, $config:ident, $op:ident, $no_bias:ident, $dimensions:literal;)*) => {$(
        #[doc = concat!("Convolution over ", $dimensions, ", as [`candle_nn::", stringify!($layer), "`]; groups are computed at once.")]
        #[derive(Clone, Debug)]
        pub struct $layer(candle_nn::$layer);

        impl $layer {
            /// A layer of `[filters, channels / groups, ..]`, with a summand of each filter or without.
            pub fn new(weight: Tensor, bias: Option<Tensor>, config: $config) -> Self {
                Self(candle_nn::$layer::new(weight, bias, config))
            }

            /// Its configuration, whose choice of an algorithm of cuDNN does not matter here.
            pub fn config(&self) -> &$config {
                self.0.config()
            }

            /// The factors.
            pub fn weight(&self) -> &Tensor {
                self.0.weight()
            }

            /// The summand of each filter.
            pub fn bias(&self) -> Option<&Tensor> {
                self.0.bias()
            }
        }

        impl From<candle_nn::$layer> for $layer {
            fn from(layer: candle_nn::$layer) -> Self {
                Self(layer)
            }
        }

        impl Module for $layer {
            fn forward(&self, xs: &Tensor) -> Result<Tensor> {
                ops::$op(xs, self.weight(), self.bias(), self.config())
            }
        }

        #[doc = concat!("A layer with the parameters `weight` and `bias`, as [`candle_nn::", stringify!($op), "`].")]
        ///
        /// # Errors
        /// Those of the builder.
        pub fn $op(
            in_channels: usize,
            out_channels: usize,
            kernel_size: usize,
            cfg: $config,
            vb: VarBuilder<'_>,
        ) -> Result<$layer> {
            candle_nn::$op(in_channels, out_channels, kernel_size, cfg, vb).map($layer)
        }

        #[doc = concat!("A layer with the parameter `weight`, as [`candle_nn::", stringify!($no_bias), "`].")]
        ///
        /// # Errors
        /// Those of the builder.
        pub fn $no_bias(
            in_channels: usize,
            out_channels: usize,
            kernel_size: usize,
            cfg: $config,
            vb: VarBuilder<'_>,
        ) -> Result<$layer> {
            candle_nn::$no_bias(in_channels, out_channels, kernel_size, cfg, vb).map($layer)
        }
    )*};
}

layers! {
    Conv1d, Conv1dConfig, conv1d, conv1d_no_bias, "one dimension";
    Conv2d, Conv2dConfig, conv2d, conv2d_no_bias, "two dimensions";
}
