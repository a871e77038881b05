//! Cases of images at other extents.

use std::sync::Arc;

use warpwright_ops::plan::Real;
use warpwright_ops::resize::sampling::Sampling;
use warpwright_ops::resize::{
    Layout, Mode, ResizeArgs, ResizeBackwardArgs, ResizeBackwardDesc, ResizeDesc, reference,
};
use warpwright_ops::{Direction, Operation};
use warpwright_ptx::DType;

use crate::budget;
use crate::case::{Bench, Case, CaseError, Scope, Subject};
use crate::images::by_plane;
use crate::inputs::Input;
use crate::measure::{Comparison, Expected};
use crate::storage;

#[derive(Debug)]
struct ResizeSubject {
    direction: Direction,
    desc: ResizeDesc,
    axes: [Sampling; 3],
    /// Whether there are infinities and NaN among the elements.
    special: bool,
    lead: usize,
}

/// Every case of the family.
pub(crate) fn cases(scope: Scope) -> Vec<Case> {
    let mut out = Vec::new();
    for dtype in DType::FLOATS {
        for (number, desc) in situations(scope, dtype).into_iter().enumerate() {
            let axes = desc.sampling().expect("the cases are in order");
            for direction in [Direction::Forward, Direction::Backward] {
                let doubled = desc.output[1..] == [2 * desc.input[1], 2 * desc.input[2]];
                let special = number % 4 == 2 || (doubled && number % 8 == 5);
                let words = if special { ", special" } else { "" };
                let ResizeDesc { batch, channels, input, output, mode, align_corners, .. } = desc;
                out.push(Case {
                    op: "resize",
                    direction,
                    dtype,
                    shape: vec![batch, channels, input[0], input[1], input[2]],
                    input: format!(
                        "{:?}, {mode:?}, corners {align_corners}, to {output:?}{words}",
                        desc.layout
                    ),
                    // Cells of the input have many copies.
                    budget: budget::elementwise(dtype).of_alike(),
                    subject: Arc::new(ResizeSubject {
                        direction,
                        desc: desc.clone(),
                        axes,
                        special,
                        lead: usize::from(batch == 3),
                    }),
                });
            }
        }
    }
    out
}

fn situations(scope: Scope, dtype: DType) -> Vec<ResizeDesc> {
    let mut all = Vec::new();
    let of = |(layout, batch, channels), mode, input, output| ResizeDesc {
        dtype,
        layout,
        batch,
        channels,
        input,
        output,
        mode,
        align_corners: false,
        scale: [None; 3],
    };
    let mut add = |mode: Mode, align_corners: bool, input: [usize; 3], output: [usize; 3]| {
        for lies in [(Layout::ChannelsFirst, 2, 3), (Layout::ChannelsLast, 2, 16)] {
            all.push(ResizeDesc { align_corners, ..of(lies, mode, input, output) });
        }
    };
    for mode in [Mode::Nearest, Mode::NearestExact] {
        add(mode, false, [1, 5, 6], [1, 10, 12]);
        add(mode, false, [1, 7, 9], [1, 5, 4]);
        add(mode, false, [1, 1, 11], [1, 1, 29]);
        add(mode, false, [2, 3, 4], [5, 4, 7]);
        add(mode, false, [1, 1, 1], [1, 3, 2]);
    }
    for corners in [false, true] {
        add(Mode::Linear, corners, [1, 5, 6], [1, 10, 12]);
        add(Mode::Linear, corners, [1, 7, 9], [1, 5, 4]);
        add(Mode::Linear, corners, [1, 1, 11], [1, 1, 25]);
        add(Mode::Linear, corners, [3, 3, 4], [5, 2, 7]);
        add(Mode::Linear, corners, [1, 4, 5], [1, 1, 1]);
        add(Mode::Linear, corners, [1, 1, 1], [1, 4, 3]);
        add(Mode::Cubic, corners, [1, 5, 6], [1, 9, 11]);
        add(Mode::Cubic, corners, [1, 7, 9], [1, 5, 4]);
        add(Mode::Cubic, corners, [1, 2, 1], [1, 5, 3]);
        add(Mode::Cubic, corners, [1, 4, 4], [1, 4, 4]);
    }
    add(Mode::Linear, false, [1, 3, 3], [1, 30, 31]);
    if scope == Scope::Full {
        for mode in [Mode::Nearest, Mode::NearestExact, Mode::Linear, Mode::Cubic] {
            for (input, output) in
                [(8, 8), (8, 9), (8, 15), (8, 17), (9, 3), (17, 1), (1, 9), (3, 40), (40, 3)]
            {
                add(mode, false, [1, input, input + 1], [1, output, output]);
            }
        }
    }
    // Twice the height and width, of rows of whole runs of every length; the ends meet.
    for mode in [Mode::Nearest, Mode::NearestExact, Mode::Linear, Mode::Cubic] {
        for input in [[1, 2, 2], [1, 5, 8], [1, 4, 3], [1, 3, 16], [1, 2, 20]] {
            add(mode, false, input, [1, 2 * input[1], 2 * input[2]]);
        }
    }
    // Half the extents.
    for (input, output) in [([1, 6, 16], [1, 3, 8]), ([1, 4, 6], [1, 2, 3]), ([1, 1, 8], [1, 1, 4])] {
        add(Mode::Linear, false, input, output);
        add(Mode::Linear, true, input, output);
    }
    add(Mode::Linear, false, [2, 4, 8], [1, 2, 4]);
    add(Mode::Linear, false, [2, 4, 8], [2, 2, 4]);
    // Runs of every length of other extents, too.
    for mode in [Mode::Nearest, Mode::Linear, Mode::Cubic] {
        for input in [[1, 5, 7], [1, 8, 30]] {
            add(mode, false, input, [1, 7, 12]);
            add(mode, mode != Mode::Nearest, input, [1, 3, 10]);
        }
    }
    add(Mode::Nearest, false, [3, 2, 4], [3, 4, 8]);
    add(Mode::NearestExact, false, [3, 2, 4], [3, 4, 8]);
    add(Mode::Linear, true, [1, 5, 8], [1, 10, 16]);
    let last = |batch, channels| (Layout::ChannelsLast, batch, channels);
    let factor = |factor| [None, Some(Real::new(factor)), Some(Real::new(factor))];
    // Steps from factors, which the extents do not have; an address that vectors do not take; nothing.
    for mode in [Mode::Nearest, Mode::Linear, Mode::Cubic] {
        all.push(ResizeDesc { scale: factor(1.7), ..of(last(3, 8), mode, [1, 5, 6], [1, 8, 10]) });
        all.push(ResizeDesc { scale: factor(2.0), ..of(last(3, 8), mode, [1, 5, 6], [1, 10, 12]) });
        let first = (Layout::ChannelsFirst, 3, 2);
        all.push(ResizeDesc { scale: factor(2.0), ..of(first, mode, [1, 5, 8], [1, 10, 16]) });
    }
    all.push(ResizeDesc { scale: factor(0.4), ..of(last(1, 6), Mode::Linear, [1, 9, 8], [1, 3, 3]) });
    all.push(of(last(0, 6), Mode::Linear, [1, 9, 8], [1, 3, 3]));
    all
}

impl ResizeSubject {
    fn draw(&self, cells: usize, salt: u64) -> Vec<f64> {
        let ResizeDesc { dtype, batch, channels, .. } = self.desc;
        let mut values = Input::Normal.values(batch * channels * cells, salt << 20 | cells as u64);
        if self.special {
            let specials = [f64::INFINITY, f64::NAN, 0.0, f64::NEG_INFINITY, -0.0];
            values.iter_mut().step_by(17).enumerate().for_each(|(i, v)| *v = specials[i % specials.len()]);
        }
        values.into_iter().map(|v| storage::round(dtype, v)).collect()
    }
}

impl Subject for ResizeSubject {
    fn run(&self, bench: &mut Bench<'_>) -> Result<Comparison, CaseError> {
        let ResizeDesc { dtype, layout, batch, channels, .. } = self.desc;
        let cells =
            |of: fn(&Sampling) -> u32| -> usize { self.axes.iter().map(|axis| of(axis) as usize).product() };
        let (input, output) = (cells(|axis| axis.input), cells(|axis| axis.output));
        if self.direction == Direction::Forward {
            let plan = self.desc.plan(bench.target())?;
            let xs = self.draw(input, 1);
            let values = by_plane(layout, [batch, channels], &xs, [input, output], |x| {
                Expected::all(&reference::forward(&self.axes, x))
            });
            let x = bench.input("x", dtype, &xs, self.lead)?;
            let mut y = bench.output("y", dtype, values.len(), self.lead)?;
            bench.launch(|stream| Ok(plan.launch(stream, ResizeArgs { x: x.view()?, y: y.view_mut()? })?))?;
            return bench.compare(&y, &values);
        }
        let plan = ResizeBackwardDesc { forward: self.desc.clone() }.plan(bench.target())?;
        let dys = self.draw(output, 2);
        let values = by_plane(layout, [batch, channels], &dys, [output, input], |dy| {
            Expected::all(&reference::backward(&self.axes, dy))
        });
        let dy = bench.input("dy", dtype, &dys, self.lead)?;
        let mut dx = bench.output("dx", dtype, values.len(), self.lead)?;
        bench.launch(|stream| {
            Ok(plan.launch(stream, ResizeBackwardArgs { dy: dy.view()?, dx: dx.view_mut()? })?)
        })?;
        bench.compare(&dx, &values)
    }
}
