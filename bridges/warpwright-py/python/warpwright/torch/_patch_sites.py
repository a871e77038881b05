"""Places in the source of a forward pass where operations of ours do the work of several of PyTorch's, and their rewriting.

    x = self.norm(x); x = self.act(x)                          chain
    h = r + h; r = h; h = self.norm(h)                         add_norm
    h = self.norm(h + r)                                       add_norm
    x = self.norm(x); if ...: r = ...; x += r; x = self.act(x) add_act
    self.act(a) * b, b * F.gelu(a)                             gate
    F.scaled_dot_product_attention(q, k, v)                    attend

What follows a condition is taken into its branches where one ends with the first operation of a chain.

Each becomes a call of a function of `_patch_blocks`, which decides when it runs. What it is given is evaluated as before, in the same order
but for a shortcut's own module, which comes before the norm that it is added behind, and a factor, which comes before the activation.
"""

import ast
import copy
from typing import Any, List, Optional, Sequence, Tuple

# How functions of `_patch_blocks` are called in the source.
HELPERS = "_warpwright_blocks"
_GATES = {f"{f}.{name}" for f in ("F", "nn.functional", "torch.nn.functional") for name in ("silu", "gelu")}
_ATTENTION = {f"{f}.scaled_dot_product_attention" for f in ("F", "nn.functional", "torch.nn.functional")}


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


class Rewriter(ast.NodeTransformer):
    """Puts calls of the helpers where they belong. sites: what was found, by kind, with the modules that it is about."""

    def __init__(self, kinds: Sequence[str]) -> None:
        self.kinds = kinds
        self.sites: List[Tuple[str, Tuple[str, ...]]] = []

    def _helper(self, name: str, *arguments: Any, keywords: Any = ()) -> ast.Call:
        function = ast.Attribute(ast.Name(HELPERS, ast.Load()), name, ast.Load())
        return ast.Call(function, list(arguments), list(keywords))

    def _site(self, kind: str, *modules: ast.AST) -> None:
        self.sites.append((kind, tuple(ast.unparse(m) for m in modules)))

    def generic_visit(self, node: ast.AST) -> ast.AST:
        if "fused" in self.kinds:
            self._sink(node)
        super().generic_visit(node)
        for part in ("body", "orelse", "finalbody"):
            statements = getattr(node, part, None)
            if isinstance(statements, list) and "fused" in self.kinds:
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
        while at < len(statements):
            for rule in (self._add_act, self._add_norm, self._chain):
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
        return self._parts_of_add_act(statements, statements.index(node)) is not None

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
        name, norm, act, other, between, apart, end = parts
        self._site("add_act", norm, act)
        call = self._helper("add_act", ast.Name("self", ast.Load()), norm, act, ast.Name(name, ast.Load()), other)
        fused = [*apart, ast.Assign([ast.Name(name, ast.Store())], call)]
        if not between:
            return fused, end - at
        tests: List[Any] = [ast.Compare(module, [ast.Is()], [ast.Constant(None)]) for module in between]
        test = tests[0] if len(tests) == 1 else ast.BoolOp(ast.And(), tests)
        return [ast.If(test, fused, statements[at:end])], end - at

    def visit_BinOp(self, node: ast.BinOp) -> Any:
        self.generic_visit(node)
        if not isinstance(node.op, ast.Mult) or "fused" not in self.kinds:
            return node
        for act, other in ((node.left, node.right), (node.right, node.left)):
            call = _module_call(act)
            named = isinstance(act, ast.Call) and ast.unparse(act.func) in _GATES and len(act.args) == 1 and not act.keywords
            if call or named:
                self._site("gate", act.func)
                return ast.copy_location(self._helper("gate", ast.Name("self", ast.Load()), act.func, act.args[0], other), node)
        return node

    def visit_Call(self, node: ast.Call) -> Any:
        call = _module_call(node)
        terms = _sum(call[1]) if call else None
        self.generic_visit(node)
        if call and terms and "fused" in self.kinds:
            self._site("add_norm", call[0])
            found = self._helper("add_norm", ast.Name("self", ast.Load()), call[0], *_sum(node.args[0]) or terms)
            return ast.copy_location(ast.Subscript(found, ast.Constant(0), ast.Load()), node)
        if ast.unparse(node.func) in _ATTENTION and "attention" in self.kinds:
            self._site("attend")
            return ast.copy_location(
                self._helper("attend", ast.Name("self", ast.Load()), *node.args, keywords=node.keywords), node
            )
        return node
