//! The tensors of a net and of its gradients.

use crate::tensors::tensors;

tensors! {
    /// The weights of a layer and direction.
    #[derive(Clone, Copy)]
    pub struct WeightRefs<'a> {
        /// `[gates hidden, input]`; the inputs of later layers have `directions output` elements.
        w_ih: In,
        /// `[gates hidden, output]`
        w_hh: In,
        /// `[projection, hidden]`
        w_hr: Option<In>,
        /// `[gates hidden]`
        b_ih: Option<In>,
        /// `[gates hidden]`
        b_hh: Option<In>,
    }
}

tensors! {
    /// Tensors of [`RecurrentDesc`](super::RecurrentDesc).
    pub struct RecurrentArgs<'a> {
        /// `[steps, batch, input]`
        x: In,
        /// `[batch]`, i32; below 0 counts as 0, more than `steps` as `steps`.
        lengths: Option<In>,
        /// `[layers directions, batch, output]`
        h0: Option<In>,
        /// `[layers directions, batch, hidden]`
        c0: Option<In>,
        /// Seed and offset of dropout, `[2]`, i64.
        random: Option<In>,
        /// The hidden state of the last layer at every time step, `[steps, batch, directions output]`.
        y: Out,
        /// The hidden states of the last steps, `[layers directions, batch, output]`.
        h_n: Out,
        /// The cells of the last steps, `[layers directions, batch, hidden]`; of [`Cell::Lstm`](super::Cell::Lstm).
        c_n: Option<Out>,
        /// The reserve of the backward pass.
        reserve: Option<Out>,
        /// Scratch memory.
        workspace: Option<Out>,
        /// Of each direction of each layer.
        weights: Each<WeightRefs>,
    }
}

tensors! {
    /// The weights of a layer and direction, and their gradients.
    pub struct WeightGradients<'a> {
        /// As in the forward pass.
        w_ih: In,
        /// As in the forward pass.
        w_hh: In,
        /// As in the forward pass.
        w_hr: Option<In>,
        /// The gradient of `w_ih`.
        dw_ih: Out,
        /// The gradient of `w_hh`.
        dw_hh: Out,
        /// The gradient of `w_hr`.
        dw_hr: Option<Out>,
        /// The gradient of `b_ih`.
        db_ih: Option<Out>,
        /// The gradient of `b_hh`.
        db_hh: Option<Out>,
    }
}

tensors! {
    /// Tensors of [`RecurrentBackwardDesc`](super::RecurrentBackwardDesc).
    pub struct RecurrentBackwardArgs<'a> {
        /// As in the forward pass.
        x: In,
        /// As in the forward pass.
        lengths: Option<In>,
        /// As in the forward pass.
        h0: Option<In>,
        /// As in the forward pass.
        c0: Option<In>,
        /// As in the forward pass.
        random: Option<In>,
        /// The result of the forward pass.
        y: In,
        /// The reserve of the forward pass.
        reserve: In,
        /// The gradient of `y`.
        dy: Option<In>,
        /// The gradient of `h_n`.
        dh_n: Option<In>,
        /// The gradient of `c_n`.
        dc_n: Option<In>,
        /// The gradient of `x`.
        dx: Option<Out>,
        /// The gradient of `h0`.
        dh0: Option<Out>,
        /// The gradient of `c0`.
        dc0: Option<Out>,
        /// Scratch memory.
        workspace: Option<Out>,
        /// Of each direction of each layer.
        weights: Each<WeightGradients>,
    }
}
