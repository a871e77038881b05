//! `mma`, `wgmma` and the matrix loads and stores as text.

use super::Body;
use crate::inst::*;
use crate::types::*;

impl Body<'_> {
    pub(super) fn mma(&mut self, m: &Mma) {
        self.text(match m.sparsity {
            None => "mma",
            Some(Sparsity { ordered: false, .. }) => "mma.sp",
            Some(Sparsity { ordered: true, .. }) => "mma.sp::ordered_metadata",
        });
        self.text(".sync.aligned");
        self.dot(m.shape.name());
        self.dot(m.a_layout.name());
        self.dot(m.b_layout.name());
        if let Some(kind) = m.kind {
            self.out.push(format_args!(".kind::{kind}"));
        }
        if let Some(scale) = &m.scale {
            self.text(".block_scale");
            if let Some(vector) = scale.vector {
                self.out.push(format_args!(".scale_vec::{vector}"));
            }
        }
        if let Some(rounding) = m.rounding {
            self.dot(rounding.name());
        }
        if m.satfinite {
            self.text(".satfinite");
        }
        for ty in [m.d_ty, m.a_ty, m.b_ty, m.c_ty] {
            self.dot(ty.name());
        }
        if let Some(scale) = &m.scale {
            self.dot(scale.ty.name());
        }
        if let Some(product) = m.product {
            self.dot(product.name());
            self.text(".popc");
        }
        self.text(" ");
        self.braced(&m.d, Self::reg);
        for fragment in [&m.a, &m.b, &m.c] {
            self.text(", ");
            self.braced(fragment, Self::operand);
        }
        self.sparsity(m.sparsity);
        if let Some(BlockScale { a, b, .. }) = m.scale {
            for scale in [a, b] {
                self.comma(scale.data);
                self.text(", ");
                self.braced(&[scale.byte, scale.thread], Self::operand);
            }
        }
    }

    fn sparsity(&mut self, sparsity: Option<Sparsity>) {
        if let Some(Sparsity { metadata, selector, .. }) = sparsity {
            self.comma(metadata);
            self.out.push(format_args!(", {selector}"));
        }
    }

    fn tiles(&mut self, name: &str, tiles: MatrixTiles, space: StateSpace) {
        let MatrixTiles { shape, count, transposed, element } = tiles;
        self.out.push(format_args!("{name}.sync.aligned.{shape}.x{count}"));
        if transposed {
            self.text(".trans");
        }
        self.space(space);
        self.dot(element.name());
        self.text(" ");
    }

    pub(super) fn load_matrix(&mut self, tiles: MatrixTiles, space: StateSpace, dsts: &[Reg], addr: Address) {
        self.tiles("ldmatrix", tiles, space);
        self.braced(dsts, Self::reg);
        self.text(", ");
        self.address(addr);
    }

    pub(super) fn store_matrix(
        &mut self,
        tiles: MatrixTiles,
        space: StateSpace,
        addr: Address,
        srcs: &[Operand],
    ) {
        self.tiles("stmatrix", tiles, space);
        self.address(addr);
        self.text(", ");
        self.braced(srcs, Self::operand);
    }

    fn wmma_tile(&mut self, what: &str, tile: &WmmaTile) {
        let WmmaTile { matrix, layout, shape, space, ty, .. } = *tile;
        self.out.push(format_args!("wmma.{what}.{matrix}.sync.aligned.{layout}.{shape}"));
        self.space(space);
        self.dot(ty.name());
        self.text(" ");
    }

    fn wmma_stride(&mut self, tile: &WmmaTile) {
        if let Some(stride) = tile.stride {
            self.comma(stride);
        }
    }

    pub(super) fn wmma_load(&mut self, tile: &WmmaTile, dsts: &[Reg]) {
        self.wmma_tile("load", tile);
        self.braced(dsts, Self::reg);
        self.text(", ");
        self.address(tile.addr);
        self.wmma_stride(tile);
    }

    pub(super) fn wmma_store(&mut self, tile: &WmmaTile, srcs: &[Operand]) {
        self.wmma_tile("store", tile);
        self.address(tile.addr);
        self.text(", ");
        self.braced(srcs, Self::operand);
        self.wmma_stride(tile);
    }

    pub(super) fn wmma(&mut self, m: &Wmma) {
        self.text("wmma.mma");
        if let Some(product) = m.product {
            self.dot(product.name());
            self.text(".popc");
        }
        self.out.push(format_args!(".sync.aligned.{}.{}.{}", m.a_layout, m.b_layout, m.shape));
        if let Some(rounding) = m.rounding {
            self.dot(rounding.name());
        }
        self.dot(m.d_ty.name());
        if m.a_ty != MatrixType::F16 || m.b_ty != MatrixType::F16 {
            self.dot(m.a_ty.name());
            self.dot(m.b_ty.name());
        }
        self.dot(m.c_ty.name());
        if m.satfinite {
            self.text(".satfinite");
        }
        self.text(" ");
        self.braced(&m.d, Self::reg);
        for fragment in [&m.a, &m.b, &m.c] {
            self.text(", ");
            self.braced(fragment, Self::operand);
        }
    }

    pub(super) fn wgmma(&mut self, m: &Wgmma) {
        self.text(if m.sparsity.is_some() { "wgmma.mma_async.sp" } else { "wgmma.mma_async" });
        let Wgmma { n, k, d_ty, a_ty, b_ty, .. } = m;
        self.out.push(format_args!(".sync.aligned.m64n{n}k{k}.{d_ty}.{a_ty}.{b_ty}"));
        if m.satfinite {
            self.text(".satfinite");
        }
        if m.a_ty == MatrixType::B1 {
            self.text(".and.popc");
        }
        self.text(" ");
        self.braced(&m.d, Self::reg);
        self.text(", ");
        match &m.a {
            WgmmaSource::Descriptor(descriptor) => self.operand(*descriptor),
            WgmmaSource::Registers(registers) => self.braced(registers, Self::operand),
        }
        self.comma(m.b);
        self.sparsity(m.sparsity);
        self.text(", ");
        match m.accumulate {
            Accumulate::Always(add) => self.text(if add { "1" } else { "0" }),
            Accumulate::If(pred) => self.reg(pred),
        }
        if m.has_scales() {
            for negate in [m.negate_a, m.negate_b] {
                self.text(if negate { ", -1" } else { ", 1" });
            }
        }
        if m.has_transposes() {
            if matches!(m.a, WgmmaSource::Descriptor(_)) {
                self.text(if m.transpose_a { ", 1" } else { ", 0" });
            }
            self.text(if m.transpose_b { ", 1" } else { ", 0" });
        }
    }
}
