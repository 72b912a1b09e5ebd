"""Alpha-renaming, for tests: the same program under other names."""

from collections.abc import Iterable, Mapping

from envs.leir_env.ir import Access, Block, Call, Cast, Equation, Expr, Index, Loop, Program, Role, Statement, Tensor


def canonical(program: Program) -> Program:
    """Rename every loop index (`i0`, `i1` ...) and tensor (`A0` ...) in order, temporaries by first use."""
    names = {tensor.name: f"A{n}" for n, tensor in enumerate(program.inputs + program.outputs)}
    renamer = _Renamer(names)
    body = tuple(renamer.statement(statement, {}) for statement in program.body)
    return Program(Block(body, renamer.declarations(program.tensors)))


class _Renamer:
    def __init__(self, tensors: dict[str, str]) -> None:
        self.tensors = tensors
        self.loops = 0

    def tensor(self, name: str) -> str:
        return self.tensors.setdefault(name, f"A{len(self.tensors)}")

    def declarations(self, tensors: Iterable[Tensor]) -> tuple[Tensor, ...]:
        renamed = [Tensor(self.tensor(t.name), t.dtype, t.shape, t.scope, t.role) for t in tensors]
        fixed = [t for t in renamed if t.role is not Role.TEMPORARY]
        return (*fixed, *sorted((t for t in renamed if t.role is Role.TEMPORARY), key=lambda t: int(t.name[1:])))

    def statement(self, statement: Statement, indices: Mapping[str, str]) -> Statement:
        if isinstance(statement, Loop):
            name = f"i{self.loops}"
            self.loops += 1
            inner = {**indices, statement.index: name}
            body = tuple(self.statement(child, inner) for child in statement.block.body)
            block = Block(body, self.declarations(statement.block.tensors))
            return Loop(statement.kind, name, statement.extent, block, statement.axis)
        target = self.expression(statement.target, indices)
        assert isinstance(target, Access)
        return Equation(
            target,
            statement.assign,
            self.expression(statement.value, indices),
            tuple(self.expression(condition, indices) for condition in statement.guard),
        )

    def expression(self, expr: Expr, indices: Mapping[str, str]) -> Expr:
        match expr:
            case Index(name):
                return Index(indices[name])
            case Access(name, subscripts):
                return Access(self.tensor(name), tuple(self.expression(s, indices) for s in subscripts))
            case Call(op, args):
                return Call(op, tuple(self.expression(arg, indices) for arg in args))
            case Cast(dtype, value):
                return Cast(dtype, self.expression(value, indices))
        return expr
