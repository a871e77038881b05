//! Backward kernels for channels-last tensors.

use warpwright_dsl::prelude::*;
use warpwright_dsl::{PixelColumn, PixelStrips, PixelTilingArgs, kernel_args};

use super::columns::{PAIR_ROUND, THREADS, groups_of, of_groups};
use super::common::{Affine, Elements, store_planes};
use super::gradients::{Channel, Inputs, InputsArgs, Line, with_or_without_silu};

kernel_args! {
    /// `partials` are two planes of [sample, split, channel]: sums of `dy` and of `dy xhat`.
    pub(super) struct SumsArgs => SumsParams {
        inputs: InputsArgs,
        partials: Out<Elem>, groups: u32, of_group: u32, shape: PixelTilingArgs, plane: u64, flags: u32,
    }
}

/// The sums of each channel over some pixels.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sums(pub(super) Elements);

impl AccumulateKernel for Sums {
    type Args = SumsArgs;

    fn spec(&self) -> KernelSpec {
        self.0.spec("last_backward_sums", THREADS, ["inputs.mean", "inputs.rstd", "partials"])
    }

    fn build<'k, A: Accumulate>(&self, k: K<'k>, a: SumsParams<'k>) {
        k.start_next_grid();
        let Elements { dtype, width } = self.0;
        let precision = Precision::of(dtype);
        let column = PixelColumn::of(k, k.block_idx_x(), a.shape, width);
        let affine = a.inputs.affine(a.flags);
        let options = affine.options;
        let sources = Sources { affine, inputs: a.inputs, groups: a.groups, of_group: a.of_group };
        let zeros = || Lanes::constant(k, 0.0, width);
        let (sums, products) = k.if_else(
            column.exists,
            || {
                let (channels, _) = sources.channels::<A>(k, &column, width);
                let (sums, products) = with_or_without_silu(k, options, precision, |silu| {
                    column.rounds(PAIR_ROUND, (zeros(), zeros()), |at, round, sums| {
                        let x = column.load::<A>(a.inputs.x, at, round);
                        let dy = column.load::<A>(a.inputs.dy, at, round);
                        x.iter().zip(&dy).fold(sums, |(sums, products), (x, dy)| {
                            let (distances, gradients) = pixel(silu, &channels, x, dy);
                            let products = gradients.mul_add(distances, products);
                            (sums + gradients, products)
                        })
                    })
                });
                let products = products.iter().zip(&channels).map(|(sum, c)| sum * c.rstd).collect();
                (sums, products)
            },
            || (zeros(), zeros()),
        );

        let strips = PixelStrips::new(column, [sums, products]);
        strips.each_channel(|channel| {
            let add = |_, thread, sums: [Reg<'k, A>; 2]| {
                std::array::from_fn(|i| sums[i] + strips.value(i, channel, thread))
            };
            let sums = strips.fold(channel, || [k.lit(0.0), k.lit(0.0)], add);
            store_planes(a.partials.at(column.partial(channel.channel)), a.plane, sums);
        });
    }
}

/// The channels of a thread of the backward kernels.
struct Sources<'k> {
    affine: Affine<'k>,
    inputs: Inputs<'k>,
    groups: U32<'k>,
    of_group: U32<'k>,
}

impl<'k> Sources<'k> {
    /// The channels of a thread, and their groups.
    fn channels<A: Float>(
        &self,
        k: K<'k>,
        column: &PixelColumn<'k>,
        width: u32,
    ) -> (Vec<Channel<'k, A>>, Lanes<'k, u32>) {
        let groups = groups_of(k, column, self.groups, self.of_group, width);
        let of_groups = of_groups(k, self.of_group, width, &groups, |group| {
            (self.inputs.mean.at(group).get(), self.inputs.rstd.at(group).get())
        });
        let weights = self.affine.weights::<A>(k, column.vector, width);
        let biases = self.affine.biases::<A>(k, column.vector, width);
        let channels = of_groups
            .into_iter()
            .zip(weights.iter().zip(biases.iter()))
            .map(|((mean, rstd), (weight, bias))| Channel { mean, rstd, weight, bias })
            .collect();
        (channels, groups)
    }
}

/// Distances from the means and gradients in front of `silu` of one pixel.
fn pixel<'k, A: Float>(
    silu: Option<Precision>,
    channels: &[Channel<'k, A>],
    x: &Packed<'k, A>,
    dy: &Packed<'k, A>,
) -> (Lanes<'k, A>, Lanes<'k, A>) {
    let (x, dy) = (x.lanes(), dy.lanes());
    let distances: Lanes<'k, A> = channels.iter().zip(x.iter()).map(|(c, x)| x - c.mean).collect();
    let Some(precision) = silu else { return (distances, dy) };
    let slopes = channels
        .iter()
        .zip(distances.iter())
        .map(|(c, d)| d.mul_add(c.rstd * c.weight, c.bias).silu_slope_for(precision));
    let gradients = slopes.zip(dy.iter()).map(|(slope, dy)| dy * slope).collect();
    (distances, gradients)
}

kernel_args! {
    /// As [`SumsArgs`]; `means` are two planes of [sample, group].
    pub(super) struct ApplyArgs => ApplyParams {
        inputs: InputsArgs, means: In<Elem>,
        dx: Out<Elem>, groups: u32, of_group: u32, shape: PixelTilingArgs, means_plane: u64, flags: u32,
    }
}

/// `dx` from the means over the groups.
#[derive(Clone, Copy, Debug)]
pub(super) struct Apply(pub(super) Elements);

impl AccumulateKernel for Apply {
    type Args = ApplyArgs;

    fn spec(&self) -> KernelSpec {
        self.0.spec("last_backward_apply", THREADS, ["inputs.mean", "inputs.rstd", "means"])
    }

    fn build<'k, A: Accumulate>(&self, k: K<'k>, a: ApplyParams<'k>) {
        k.overlap_grids();
        let Elements { dtype, width } = self.0;
        let precision = Precision::of(dtype);
        // Backwards: what the first pass read last is still in the L2 cache.
        let column = PixelColumn::of(k, (k.grid_dim_x() - 1) - k.block_idx_x(), a.shape, width);
        let affine = a.inputs.affine(a.flags);
        let options = affine.options;
        let sources = Sources { affine, inputs: a.inputs, groups: a.groups, of_group: a.of_group };
        k.if_(column.exists, || {
            let (channels, groups) = sources.channels::<A>(k, &column, width);
            let means = of_groups(k, a.of_group, width, &groups, |group| {
                let means = a.means.at(group);
                (means.get(), means.at(a.means_plane).get())
            });
            let lines: Vec<Line<'k, A>> = channels
                .iter()
                .zip(means)
                .map(|(channel, (g, g_xhat))| Line::of(*channel, g, g_xhat))
                .collect();
            let pitch = column.pitch();
            with_or_without_silu(k, options, precision, |silu| {
                column.rounds(PAIR_ROUND, (), |at, round, ()| {
                    let x = column.load::<A>(a.inputs.x, at, round);
                    let dy = column.load::<A>(a.inputs.dy, at, round);
                    let dx = a.dx.at(column.element(at));
                    for ((x, dy), dx) in x.iter().zip(&dy).zip(dx.pitched(pitch, round)) {
                        let (distances, gradients) = pixel(silu, &channels, x, dy);
                        let results: Lanes<'k, A> = lines
                            .iter()
                            .zip(distances.iter().zip(gradients.iter()))
                            .map(|(line, (d, g))| line.dx(d, g))
                            .collect();
                        dx.store(results);
                    }
                });
            });
        });
    }
}
