//! Images plane by plane, whatever their layout.

use warpwright_ops::pool::Layout;

/// `f` of the cells of every plane of `[batch, channels]` images: `input` values in, `output` results out, which lie where the layout
/// has them.
pub(crate) fn by_plane<T: Copy, U: Clone>(
    layout: Layout,
    [batch, channels]: [usize; 2],
    values: &[T],
    [input, output]: [usize; 2],
    f: impl Fn(&[T]) -> Vec<U>,
) -> Vec<U> {
    let at = |plane: usize, cells: usize, cell: usize| match layout {
        Layout::ChannelsFirst => plane * cells + cell,
        Layout::ChannelsLast => (plane / channels * cells + cell) * channels + plane % channels,
    };
    let mut out = vec![None; batch * channels * output];
    for plane in 0..batch * channels {
        let of_plane: Vec<T> = (0..input).map(|cell| values[at(plane, input, cell)]).collect();
        f(&of_plane).into_iter().enumerate().for_each(|(cell, y)| out[at(plane, output, cell)] = Some(y));
    }
    out.into_iter().flatten().collect()
}
