"""Makes optim.h: updates of a matrix and a bias by torch.optim.AdamW and torch.optim.SGD, in double; and by Lion, which
PyTorch does not have, as the authors' own published PyTorch code does it (Chen et al. 2023, github.com/google/automl).

Needs PyTorch. Run: python3 tests/golden/optim.py > tests/golden/optim.h
"""
import torch

STEPS = 8
CASES = [
    # name, class, options, decay of the matrix, decay of the bias, clip
    ("adamw_matrices", "AdamW", dict(betas=(0.9, 0.95), eps=1e-8), 0.1, 0.0, 1.0),
    ("adamw_all", "AdamW", dict(betas=(0.8, 0.999), eps=1e-6), 0.3, 0.3, 0.0),
    ("adamw_tight", "AdamW", dict(betas=(0.0, 0.5), eps=1e-3), 0.0, 0.0, 0.25),
    ("lion", "Lion", dict(betas=(0.9, 0.99)), 0.5, 0.0, 1.0),
    ("sgd_plain", "SGD", dict(momentum=0.0), 0.0, 0.0, 0.0),
    ("sgd_momentum", "SGD", dict(momentum=0.9), 0.01, 0.01, 1.0),
    ("sgd_matrices", "SGD", dict(momentum=0.5), 0.2, 0.0, 0.5),
]


class Lion(torch.optim.Optimizer):
    def __init__(self, params, lr, betas):
        super().__init__(params, dict(lr=lr, betas=betas, weight_decay=0.0))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                m = self.state[p].setdefault("exp_avg", torch.zeros_like(p))
                p.mul_(1 - group["lr"] * group["weight_decay"])
                update = m * group["betas"][0] + p.grad * (1 - group["betas"][0])
                p.add_(update.sign_(), alpha=-group["lr"])
                m.mul_(group["betas"][1]).add_(p.grad, alpha=1 - group["betas"][1])


def learning_rate(step):
    return 0.05 / step


def floats(name, tensor, ctype="float"):
    digits = 9 if ctype == "float" else 17
    body = ", ".join(f"{x:.{digits}g}" for x in tensor.flatten().tolist())
    return f"    .{name} = {{{body}}},"


def train(case, start, grads):
    name, kind, options, decay_w, decay_b, clip = case
    w, b = (torch.nn.Parameter(t.double()) for t in start)
    groups = [dict(params=[w], weight_decay=decay_w), dict(params=[b], weight_decay=decay_b)]
    optimizer = (Lion if kind == "Lion" else getattr(torch.optim, kind))(groups, lr=0.1, **options)
    for step in range(1, STEPS + 1):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step)
        w.grad, b.grad = (t.double() for t in grads[step - 1])
        if clip:
            torch.nn.utils.clip_grad_norm_([w, b], clip)
        optimizer.step()
    flat = lambda key: torch.cat([optimizer.state[p].get(key, torch.zeros_like(p)).flatten() for p in (w, b)])
    states = ("exp_avg", "exp_avg_sq") if kind == "AdamW" else ("momentum_buffer", "none")
    if kind == "Lion":
        states = ("exp_avg", "none")
    if options.get("momentum") == 0.0:
        states = ("none", "none")
    return torch.cat([w.detach().flatten(), b.detach()]), [flat(s) for s in states]


def main():
    torch.manual_seed(7)
    start = torch.randn(3, 5), torch.randn(4)
    # Gradients of very different sizes, one of them zero throughout.
    grads = [(torch.randn(3, 5) * 10.0 ** torch.randint(-4, 1, (3, 5)), torch.randn(4)) for _ in range(STEPS)]
    for g, _ in grads:
        g[1, 2] = 0.0
    print("/* Made by tests/golden/optim.py with PyTorch %s. Do not edit. */" % torch.__version__.split("+")[0])
    print(f"enum {{ STEPS = {STEPS}, MATRIX = 15, COUNT = 19 }};\n")
    print("static const struct golden {")
    print("    const char *name, *plugin;\n    double beta1, beta2, eps, decay_matrix, decay_bias, clip;")
    print("    double param[COUNT], state[2][COUNT];\n} golden[] = {")
    for case in CASES:
        name, kind, options, decay_w, decay_b, clip = case
        param, states = train(case, start, grads)
        betas = options.get("betas", (options.get("momentum"), 0.0))
        print(f'    {{.name = "{name}", .plugin = "{kind.lower()}", .beta1 = {betas[0]}, .beta2 = {betas[1]},')
        print(f"     .eps = {options.get('eps', 0)}, .decay_matrix = {decay_w}, .decay_bias = {decay_b}, .clip = {clip},")
        print(floats(" param".strip(), param, "double"))
        print("    .state = {" + ", ".join("{" + ", ".join(f"{x:.17g}" for x in s.tolist()) + "}" for s in states) + "}},")
    print("};\n")
    print("static const float start[COUNT] = {" + ", ".join(f"{x:.9g}" for x in torch.cat([t.flatten() for t in start]).tolist()) + "};")
    print("static const float gradients[STEPS][COUNT] = {")
    for g in grads:
        print("    {" + ", ".join(f"{x:.9g}" for x in torch.cat([t.flatten() for t in g]).tolist()) + "},")
    print("};")
    print("static const double rates[STEPS] = {" + ", ".join(f"{learning_rate(s):.17g}" for s in range(1, STEPS + 1)) + "};")


main()
