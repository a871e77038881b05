"""Places in the source of a forward pass where operations of ours do the work of several of PyTorch's, and their rewriting.

    x = self.norm(x); x = self.act(x)                          chain
    h = r + h; r = h; h = self.norm(h)                         add_norm
    h = r + h; h = h + self.mlp(self.norm(h))                  add_norm
    h = self.norm(h + r)                                       add_norm
    x = self.norm(x); if ...: r = ...; x += r; x = self.act(x) add_act
    x = self.conv(a); the same                                 conv_add_act
    self.act(a) * b, b * F.gelu(a)                             gate
    self.act(self.gate(x)) * self.up(x)                        gate_linear
    self.down(self.act(self.gate(x)) * self.up(x))             gated_mlp
    a = self.act(self.gate(x)); b = self.up(x); x = a * b      gate_linear
    b = self.both(x); a, b = b.chunk(2, dim=-1); b = b * act(a) gate_halves
    F.scaled_dot_product_attention(q, k, v)                    attend
    q, k, v = qkv.unbind(0)                                    parts, for attend
    q, k = apply_rotary_pos_emb(q, k, cos, sin)                rotate
    F.interpolate(x, ...)                                      interpolate
    create_causal_mask(..., position_ids=position_ids)         given
    causal_conv1d_fn(x, weight), causal_conv1d_update(x, ..)   convolve, convolve_step
    mamba_selective_scan(u, ..), .._state_update(state, ..)    scan, scan_step
    mamba2_chunk_scan(x, dt, ..)                               scan_chunks
    mamba2_selective_state_update(state, x, ..)                scan_heads_step

What follows a condition is taken into its branches where one ends with the first operation of a chain.

Each becomes a call of a function of `_patch_blocks`, which decides when it runs. What it is given is evaluated as before, in the same order
but for a shortcut's own module, which comes before the norm that it is added behind and the convolution before that, a factor, which comes before the activation and behind what
that reads, and a norm, which comes first of what is added to the sum that it reads.
"""

import ast
import copy
from typing import Any, List, Optional, Sequence, Tuple

# How functions of `_patch_blocks` are called in the source.
HELPERS = "_warpwright_blocks"
# The kinds of sites that are not of kind "fused".
KIND_OF = {
    "gate_linear": "gated_linear",
    "gate_halves": "gated_linear",
    "gated_mlp": "mlp",
    "attend": "attention",
    "interpolate": "resize",
    "given": "attention_mask",
    "rotate": "rotary_embedding",
    "convolve": "causal_conv1d",
    "convolve_step": "causal_conv1d",
    "scan": "selective_scan",
    "scan_step": "selective_scan",
    "scan_chunks": "chunk_scan",
    "scan_heads_step": "chunk_scan",
}
# Functions along time, as modules of transformers call them, with the number of arguments that have no name.
_ALONG_TIME = {
    "causal_conv1d_fn": ("convolve", 1),
    "causal_conv1d_update": ("convolve_step", 2),
    "mamba_selective_scan": ("scan", 5),
    "mamba_selective_state_update": ("scan_step", 6),
    "mamba2_chunk_scan": ("scan_chunks", 5),
    "mamba2_selective_state_update": ("scan_heads_step", 6),
}
# The function that rotates queries and keys by tables of all positions, as modules of transformers call it.
_ROTATION = {"apply_rotary_pos_emb", "self.rotary_fn"}
_MASKS = {"create_causal_mask", "create_sliding_window_causal_mask", "mask_function"}
# How positions are counted where none were given.
_COUNTING = {"arange", "get_seq_length", "unsqueeze", "expand", "view", "size"}
_PARTS, _NORMED = "_warpwright_parts", "_warpwright_normed"
_POSITIONS, _GIVEN = "position_ids", "_warpwright_position_ids"
_FUNCTIONAL = ("F", "nn.functional", "torch.nn.functional")
_ATTENTION = {f"{f}.scaled_dot_product_attention" for f in _FUNCTIONAL}
_GATES = {f"{f}.{name}" for f in _FUNCTIONAL for name in ("silu", "gelu")}
_RESIZING = {f"{f}.interpolate" for f in _FUNCTIONAL}


def _of_self(node: ast.AST) -> bool:
    """Whether an expression is an attribute of the module, or of one of its modules."""
    while isinstance(node, ast.Attribute):
        node = node.value
        if isinstance(node, ast.Name):
            return node.id == "self"
    return False


def _module_call(node: Any) -> Optional[Tuple[ast.AST, ast.AST]]:
    """The module and its only argument."""
    if isinstance(node, ast.Call) and _of_self(node.func) and len(node.args) == 1 and not node.keywords:
        if not isinstance(node.args[0], ast.Starred):
            return node.func, node.args[0]
    return None


def _assigned(node: Any) -> Optional[Tuple[str, ast.AST]]:
    if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
        return node.targets[0].id, node.value
    return None


def _step(node: Any) -> Optional[Tuple[str, ast.AST, ast.AST]]:
    """Of `name = self.module(argument)`."""
    found = _assigned(node)
    call = _module_call(found[1]) if found else None
    return (found[0], *call) if found and call else None


def _is_name(node: Any, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def _uses(node: ast.AST, name: str) -> bool:
    return any(_is_name(n, name) for n in ast.walk(node))


def _loads(node: ast.AST, name: Optional[str]) -> int:
    """How often a name is read."""
    return sum(isinstance(n, ast.Name) and n.id == name and isinstance(n.ctx, ast.Load) for n in ast.walk(node))


def _at_once(node: ast.AST) -> bool:
    """Whether all of a statement is evaluated, once."""
    apart = (ast.IfExp, ast.BoolOp, ast.Lambda, ast.NamedExpr, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp, ast.Await, ast.Yield)
    return isinstance(node, (ast.Assign, ast.Return)) and not any(isinstance(n, apart) for n in ast.walk(node))


def _is_read(node: ast.AST) -> bool:
    """Whether an expression does no more than look at names and attributes."""
    looks = (ast.Name, ast.Attribute, ast.Compare, ast.BoolOp, ast.UnaryOp, ast.Constant, ast.boolop, ast.cmpop, ast.unaryop, ast.Load)
    return all(isinstance(n, looks) for n in ast.walk(node))


def _sum(node: Any) -> Optional[Tuple[ast.AST, ast.AST]]:
    return (node.left, node.right) if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add) else None


def _branches(node: Any) -> List[List[Any]]:
    """The branches of a condition that has one for every case, none of which leaves."""
    if not isinstance(node, ast.If) or not node.orelse:
        return []
    last = node.orelse
    others = _branches(last[0]) if len(last) == 1 and isinstance(last[0], ast.If) else [last]
    branches = [node.body, *others] if others else []
    leaves = (ast.Return, ast.Raise, ast.Break, ast.Continue)
    return [] if any(isinstance(branch[-1], leaves) for branch in branches) else branches


def _begin(node: ast.FunctionDef, statement: ast.stmt) -> None:
    """Puts a statement first."""
    node.body.insert(0 if ast.get_docstring(node) is None else 1, statement)


def _exchanged(node: Any, old: ast.AST, new: ast.AST) -> Any:
    """A statement with an expression in the place of another."""

    class Exchange(ast.NodeTransformer):
        def visit(self, n: ast.AST) -> Any:
            return new if n is old else self.generic_visit(n)

    return Exchange().visit(node)


class Rewriter(ast.NodeTransformer):
    """Puts calls of the helpers where they belong. sites: what was found, by kind, with the modules that it is about."""

    def __init__(self, kinds: Sequence[str]) -> None:
        self.kinds = kinds
        self.sites: List[Tuple[str, Tuple[str, ...]]] = []

    def _helper(self, name: str, *arguments: Any, keywords: Any = ()) -> ast.Call:
        function = ast.Attribute(ast.Name(HELPERS, ast.Load()), name, ast.Load())
        return ast.Call(function, list(arguments), list(keywords))

    @staticmethod
    def _is_helper(node: ast.AST, name: str) -> bool:
        return isinstance(node, ast.Call) and ast.unparse(node.func) == f"{HELPERS}.{name}"

    def _site(self, kind: str, *modules: ast.AST) -> None:
        self.sites.append((kind, tuple(ast.unparse(m) for m in modules)))

    def generic_visit(self, node: ast.AST) -> ast.AST:
        if "fused" in self.kinds:
            self._sink(node)
        super().generic_visit(node)
        for part in ("body", "orelse", "finalbody"):
            statements = getattr(node, part, None)
            if isinstance(statements, list) and {"fused", "mlp"} & set(self.kinds):
                setattr(node, part, self._statements(statements))
        return node

    @staticmethod
    def _sink(node: ast.AST) -> None:
        """Moves what follows on all branches of a condition into them, if one of them ends with what it may be one operation with."""
        statements = getattr(node, "body", None)
        for at, pair in enumerate(zip(statements, statements[1:]) if isinstance(statements, list) else ()):
            condition, step = pair[0], _step(pair[1])
            branches = _branches(condition)
            if not branches or step is None or not _is_name(step[2], step[0]):
                continue
            if any(last is not None and last[0] == step[0] for last in map(_step, (branch[-1] for branch in branches))):
                for branch in branches:
                    branch.append(copy.deepcopy(pair[1]))
                del statements[at + 1]
                return

    def _statements(self, statements: List[Any]) -> List[Any]:
        found: List[Any] = []
        at = 0
        rules = (self._conv_add_act, self._add_act, self._add_norm, self._add_norm_unless, self._add_norm_within, self._chain)
        while at < len(statements):
            for rule in rules if "fused" in self.kinds else (self._chain,):
                new = rule(statements, at)
                if new is not None:
                    replaced, count = new
                    found += [ast.copy_location(s, statements[at]) for s in replaced]
                    at += count
                    break
            else:
                found.append(statements[at])
                at += 1
        return found

    def _chain(self, statements: List[Any], at: int) -> Any:
        first = _step(statements[at])
        if first is None:
            return None
        name, steps = first[0], [first]
        for node in statements[at + 1 :]:
            step = _step(node)
            if step is None or step[0] != name or not _is_name(step[2], name) or self._begins_other(statements, node):
                break
            steps.append(step)
        if len(steps) < 2:
            return None
        modules = [module for _, module, _ in steps]
        self._site("chain", *modules)
        call = self._helper("chain", ast.Name("self", ast.Load()), ast.Tuple(modules, ast.Load()), first[2])
        return [ast.Assign([ast.Name(name, ast.Store())], call)], len(steps)

    def _begins_other(self, statements: List[Any], node: Any) -> bool:
        """Whether a statement begins what ends with an addition and an activation."""
        at = statements.index(node)
        return any(parts(statements, at) is not None for parts in (self._parts_of_conv_add_act, self._parts_of_add_act))

    def _add_norm(self, statements: List[Any], at: int) -> Any:
        if at + 2 >= len(statements):
            return None
        total, kept, norm = _assigned(statements[at]), _assigned(statements[at + 1]), _step(statements[at + 2])
        terms = _sum(total[1]) if total else None
        if not (total and terms and kept and norm):
            return None
        name = total[0]
        if not (_is_name(kept[1], name) and kept[0] != name and norm[0] == name and _is_name(norm[2], name)):
            return None
        self._site("add_norm", norm[1])
        call = self._helper("add_norm", ast.Name("self", ast.Load()), norm[1], *terms)
        target = ast.Tuple([ast.Name(name, ast.Store()), ast.Name(kept[0], ast.Store())], ast.Store())
        return [ast.Assign([target], call)], 3

    def _add_norm_unless(self, statements: List[Any], at: int) -> Any:
        """With `if ...:` between the sum and the norm."""
        if at + 3 >= len(statements):
            return None
        total, condition = _assigned(statements[at]), statements[at + 1]
        if not total or not isinstance(condition, ast.If) or condition.orelse or not _is_read(condition.test) or _uses(condition.test, total[0]):
            return None
        found = self._add_norm([statements[at], *statements[at + 2 : at + 4]], 0)
        if found is None:
            return None
        before = [statements[at], *condition.body, *(copy.deepcopy(s) for s in statements[at + 2 : at + 4])]
        return [ast.If(condition.test, before, found[0])], 4

    def _add_norm_within(self, statements: List[Any], at: int) -> Any:
        """With the norm within the statement behind the sum."""
        total = _assigned(statements[at])
        terms = _sum(total[1]) if total else None
        if not (total and terms) or at + 1 >= len(statements) or not _at_once(statements[at + 1]):
            return None
        name, node = total[0], statements[at + 1]
        calls = [(n, _module_call(n)) for n in ast.walk(node)]
        norms = [(n, call[0]) for n, call in calls if call and _is_name(call[1], name) and self._is_named_norm(call[0])]
        if len(norms) != 1:
            return None
        ((call, norm),) = norms
        self._site("add_norm", norm)
        # A list, out of which the only reference goes to where it is used. Compilers take `*normed, name = ..` for a tuple.
        normed = ast.Name(_NORMED, ast.Load())
        popped = ast.Call(ast.Attribute(normed, "pop", ast.Load()), [], [])
        targets = [ast.Name(_NORMED, ast.Store()), ast.Name(name, ast.Store())]
        listed = ast.Assign([ast.Name(_NORMED, ast.Store())], ast.List([ast.Name(_NORMED, ast.Load())], ast.Load()))
        helper = self._helper("add_norm", ast.Name("self", ast.Load()), norm, *terms)
        # It may be a sum before another norm in turn.
        statements[at + 1] = _exchanged(node, call, popped)
        return [ast.Assign([ast.Tuple(targets, ast.Store())], helper), listed], 1

    @staticmethod
    def _is_named_norm(module: Any) -> bool:
        return any(part in module.attr.lower() for part in ("norm", "ln"))

    @staticmethod
    def _condition(node: Any) -> Optional[Tuple[str, ast.AST, ast.AST]]:
        """Of `if self.module is not None: name = self.module(argument)`: the name, the module and the argument."""
        if not (isinstance(node, ast.If) and not node.orelse and len(node.body) == 1 and isinstance(node.test, ast.Compare)):
            return None
        step, test = _step(node.body[0]), node.test
        if step is None or len(test.ops) != 1 or not isinstance(test.ops[0], ast.IsNot):
            return None
        nothing = test.comparators[0]
        same = ast.unparse(test.left) == ast.unparse(step[1])
        return step if same and isinstance(nothing, ast.Constant) and nothing.value is None else None

    def _parts_of_add_act(self, statements: List[Any], at: int) -> Any:
        norm = _step(statements[at])
        if norm is None or not _is_name(norm[2], norm[0]):
            return None
        name, between, apart, end = norm[0], [], [], at + 1
        while end < len(statements):
            condition = self._condition(statements[end])
            if condition is None:
                break
            if condition[0] == name:
                between.append(condition[1])
            elif _uses(condition[2], name):
                return None
            else:
                apart.append(statements[end])
            end += 1
        if end + 1 >= len(statements):
            return None
        added, act = statements[end], _step(statements[end + 1])
        if not (isinstance(added, ast.AugAssign) and isinstance(added.op, ast.Add) and _is_name(added.target, name)):
            return None
        if not isinstance(added.value, ast.Name) or act is None or act[0] != name or not _is_name(act[2], name):
            return None
        return name, norm[1], act[1], added.value, between, apart, end + 2

    def _add_act(self, statements: List[Any], at: int) -> Any:
        parts = self._parts_of_add_act(statements, at)
        if parts is None:
            return None
        name, norm, act, other, _, _, _ = parts
        self._site("add_act", norm, act)
        call = self._helper("add_act", ast.Name("self", ast.Load()), norm, act, ast.Name(name, ast.Load()), other)
        return self._with_shortcut(statements, at, parts, call)

    def _parts_of_conv_add_act(self, statements: List[Any], at: int) -> Any:
        conv = _step(statements[at])
        parts = self._parts_of_add_act(statements, at + 1) if conv is not None and at + 1 < len(statements) else None
        if conv is None or parts is None or parts[0] != conv[0] or not _is_read(conv[2]):
            return None
        # What the convolution reads is read behind these.
        stored = (n.id for s in parts[5] for n in ast.walk(s) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store))
        return None if any(_uses(conv[2], name) for name in stored) else (conv, parts)

    def _conv_add_act(self, statements: List[Any], at: int) -> Any:
        found = self._parts_of_conv_add_act(statements, at)
        if found is None:
            return None
        (_, conv, argument), parts = found
        _, norm, act, other, _, _, _ = parts
        self._site("conv_add_act", conv, norm, act)
        call = self._helper("conv_add_act", ast.Name("self", ast.Load()), conv, norm, act, argument, other)
        return self._with_shortcut(statements, at, parts, call)

    @staticmethod
    def _with_shortcut(statements: List[Any], at: int, parts: Any, call: ast.Call) -> Any:
        """The statements in the place of those from `at` on, of which a call does what they do."""
        name, _, _, _, between, apart, end = parts
        fused = [*apart, ast.Assign([ast.Name(name, ast.Store())], call)]
        if not between:
            return fused, end - at
        tests: List[Any] = [ast.Compare(module, [ast.Is()], [ast.Constant(None)]) for module in between]
        test = tests[0] if len(tests) == 1 else ast.BoolOp(ast.And(), tests)
        return [ast.If(test, fused, statements[at:end])], end - at

    def visit_FunctionDef(self, node: ast.FunctionDef) -> Any:
        if "attention_mask" in self.kinds:
            self._given_positions(node)
        if "attention" in self.kinds:
            self._parts(node)
        if {"fused", "gated_linear"} & set(self.kinds):
            self._gated_names(node)
        if "gated_linear" in self.kinds:
            self._gated_halves(node)
        return self.generic_visit(node)

    def _gated_names(self, node: ast.FunctionDef) -> None:
        """Puts both factors of a gated unit where they are multiplied, if they have names for that alone."""
        for at, three in enumerate(zip(node.body, node.body[1:], node.body[2:])):
            gate, up, result = map(_assigned, three)
            if not (gate and up and result and self._is_gate(gate[1]) and self._products(gate[1], up[1])):
                continue
            named = isinstance(result[1], ast.BinOp) and ast.unparse(result[1]) == f"{gate[0]} * {up[0]}"
            if named and gate[0] != up[0] and all(_loads(node, name) == 1 for name in (gate[0], up[0])):
                three[2].value = ast.copy_location(ast.BinOp(gate[1], ast.Mult(), up[1]), result[1])  # type: ignore[attr-defined]
                del node.body[at : at + 2]
                return

    def _gated_halves(self, node: ast.FunctionDef) -> None:
        """A gated unit of the halves of one product."""
        for at, three in enumerate(zip(node.body, node.body[1:], node.body[2:])):
            product, halves, result = _step(three[0]), three[1], _assigned(three[2])
            if not (product and result and isinstance(result[1], ast.BinOp) and isinstance(result[1].op, ast.Mult)):
                continue
            name, both, x = product
            sides = [(result[1].left, result[1].right), (result[1].right, result[1].left)]
            act = next((act for act, up in sides if self._is_gate(act) and _is_name(up, name)), None)
            gated = getattr(act.args[0], "id", None) if act is not None else None  # type: ignore[attr-defined]
            if gated in (None, name) or result[0] != name or _loads(node, gated) != 1:
                continue
            wanted = ast.parse(f"{gated}, {name} = {name}.chunk(2, dim=-1)").body[0]
            if ast.dump(halves) == ast.dump(wanted):
                if "fused" in self.kinds:
                    self._site("gate", act.func)
                self._site("gate_halves", act.func, both)
                call = self._helper("gate_halves", ast.Name("self", ast.Load()), act.func, both, x)
                three[2].value = ast.copy_location(call, result[1])  # type: ignore[attr-defined]
                del node.body[at : at + 2]
                return

    def _given_positions(self, node: ast.FunctionDef) -> None:
        """Masks are made from positions that were given, and not from those that are counted where there are none: what these say, the
        library can find out on the host alone."""
        parameters = [a.arg for a in (*node.args.args, *node.args.kwonlyargs)]
        stores = [n for n in ast.walk(node) if _is_name(n, _POSITIONS) and isinstance(n.ctx, ast.Store)]
        counted = [s for s in node.body if isinstance(s, ast.If) and ast.unparse(s.test) == f"{_POSITIONS} is None" and not s.orelse]
        if _POSITIONS not in parameters or len(counted) != 1:
            return
        inside = list(ast.walk(counted[0]))
        calls = [n.func.attr if isinstance(n.func, ast.Attribute) else "" for n in inside if isinstance(n, ast.Call)]
        if not set(calls) <= _COUNTING or "arange" not in calls or not all(n in inside for n in stores):
            return
        places: List[Any] = []
        for n in ast.walk(node):
            if isinstance(n, ast.Call) and isinstance(n.func, ast.Name) and n.func.id in _MASKS:
                places += [(k, "value") for k in n.keywords if k.arg == _POSITIONS and _is_name(k.value, _POSITIONS)]
            elif isinstance(n, ast.Assign) and isinstance(n.value, ast.Dict) and ast.unparse(n.targets[0]) == "mask_kwargs":
                keys = [getattr(key, "value", None) for key in n.value.keys]
                if _POSITIONS in keys and _is_name(n.value.values[keys.index(_POSITIONS)], _POSITIONS):
                    n.value.values[keys.index(_POSITIONS)] = ast.Name(_GIVEN, ast.Load())
                    places.append(None)
        for keyword, _ in filter(None, places):
            keyword.value = ast.Name(_GIVEN, ast.Load())
        if places:
            self._site("given")
            call = self._helper("given", ast.Name("self", ast.Load()), ast.Name(_POSITIONS, ast.Load()))
            _begin(node, ast.Assign([ast.Name(_GIVEN, ast.Store())], call))

    def _parts(self, node: ast.FunctionDef) -> None:
        """Keeps what queries, keys and values are parts of for the call of attention."""
        found = [n for n in ast.walk(node) if isinstance(n, ast.Assign) and self._unbound(n) is not None]
        if len(found) != 1:
            return
        (n,) = found
        names = [name.id for name in n.targets[0].elts]  # type: ignore[attr-defined]
        attended = [c for c in ast.walk(node) if isinstance(c, ast.Call) and ast.unparse(c.func) in _ATTENTION]
        attended = [c for c in attended if [getattr(a, "id", "") for a in c.args[:3]] == names]
        if not attended:
            return
        whole = self._unbound(n)
        n.targets = [ast.Tuple([n.targets[0], ast.Name(_PARTS, ast.Store())], ast.Store())]
        n.value = self._helper("parts", whole)
        _begin(node, ast.Assign([ast.Name(_PARTS, ast.Store())], ast.Constant(None)))
        for call in attended:
            call.keywords.append(ast.keyword("parts", ast.Name(_PARTS, ast.Load())))

    @staticmethod
    def _unbound(node: ast.Assign) -> Any:
        """Of `a, b, c = x.unbind(0)`: x."""
        target, value = node.targets[0], node.value
        three = isinstance(target, ast.Tuple) and len(target.elts) == 3 and all(isinstance(n, ast.Name) for n in target.elts)
        named = isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr == "unbind"
        first = named and not value.keywords and [getattr(a, "value", None) for a in value.args] == [0]  # type: ignore[union-attr]
        return value.func.value if three and first else None  # type: ignore[union-attr]

    def visit_BinOp(self, node: ast.BinOp) -> Any:
        self.generic_visit(node)
        if not isinstance(node.op, ast.Mult) or not {"fused", "gated_linear"} & set(self.kinds):
            return node
        sides = [(act, other) for act, other in ((node.left, node.right), (node.right, node.left)) if self._is_gate(act)]
        if not sides:
            return node
        # A module may be the other factor.
        act, other = next((side for side in sides if self._products(*side)), sides[0])
        return ast.copy_location(self._gate(act, other) or node, node)

    def _is_gate(self, node: Any) -> bool:
        """Whether an expression may be the call of an activation."""
        call = _module_call(node)
        named = isinstance(node, ast.Call) and ast.unparse(node.func) in _GATES and len(node.args) == 1 and not node.keywords
        return named or (call is not None and not self._is_named_norm(call[0]))

    @staticmethod
    def _products(act: Any, other: ast.AST) -> Optional[Tuple[ast.AST, ast.AST, ast.AST]]:
        """Of `act(self.gate(x))` and `self.up(x)`: both modules and x."""
        gate, up = _module_call(act.args[0]), _module_call(other)
        if gate and up and _is_read(gate[1]) and ast.dump(gate[1]) == ast.dump(up[1]):
            return gate[0], *up
        return None

    def _gate(self, act: Any, other: ast.AST) -> Optional[ast.Call]:
        """The call for an activation and a factor."""
        itself, products = ast.Name("self", ast.Load()), self._products(act, other)
        if "fused" in self.kinds:
            self._site("gate", act.func)
        if "gated_linear" in self.kinds and products:
            self._site("gate_linear", act.func, *products[:2])
            return self._helper("gate_linear", itself, act.func, *products)
        return self._helper("gate", itself, act.func, act.args[0], other) if "fused" in self.kinds else None

    def visit_Call(self, node: ast.Call) -> Any:
        call = _module_call(node)
        terms = _sum(call[1]) if call else None
        self.generic_visit(node)
        if call and terms and "fused" in self.kinds:
            self._site("add_norm", call[0])
            found = self._helper("add_norm", ast.Name("self", ast.Load()), call[0], *_sum(node.args[0]) or terms)
            return ast.copy_location(ast.Subscript(found, ast.Constant(0), ast.Load()), node)
        if call and "mlp" in self.kinds and self._is_helper(node.args[0], "gate_linear"):
            itself, *parts = node.args[0].args  # type: ignore[attr-defined]
            *factors, x = parts
            self._site("gated_mlp", *factors, call[0])
            return ast.copy_location(self._helper("gated_mlp", itself, *factors, call[0], x), node)
        for functions, helper in ((_ATTENTION, "attend"), (_RESIZING, "interpolate")):
            if ast.unparse(node.func) in functions and KIND_OF[helper] in self.kinds:
                self._site(helper)
                itself = ast.Name("self", ast.Load())
                return ast.copy_location(self._helper(helper, itself, *node.args, keywords=node.keywords), node)
        if "rotary_embedding" in self.kinds and self._is_rotation(node):
            self._site("rotate")
            arguments = (ast.Name("self", ast.Load()), node.func, *node.args)
            return ast.copy_location(self._helper("rotate", *arguments, keywords=node.keywords), node)
        helper, least = _ALONG_TIME.get(ast.unparse(node.func), ("", 0))
        if KIND_OF.get(helper) in self.kinds and len(node.args) >= least and not any(isinstance(a, ast.Starred) for a in node.args):
            self._site(helper, node.func)
            arguments = (ast.Name("self", ast.Load()), node.func, *node.args)
            return ast.copy_location(self._helper(helper, *arguments, keywords=node.keywords), node)
        return node

    @staticmethod
    def _is_rotation(node: ast.Call) -> bool:
        four = len(node.args) == 4 and not any(isinstance(a, ast.Starred) for a in node.args)
        return four and ast.unparse(node.func) in _ROTATION and all(k.arg == "unsqueeze_dim" for k in node.keywords)
