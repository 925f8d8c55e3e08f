"""Slow readable twins of the algorithms: the cards' recursions, literally, in NumPy, on whole matrices.

Each takes the matrices, a gradient oracle G(x) that may be called once per iteration, the start and a step size, and yields
the models after each step. They know nothing of perron.
"""

import itertools

import numpy as np


def centralized(net, G, x, a):
    x = np.tile(x.mean(0), (len(x), 1))
    while True:
        x = x - a * G(x).mean(0)
        yield x


def diloco(net, G, x, a, H=4, lr_o=0.7, b=0.5):
    n, x, m = len(x), x.mean(0), 0
    while True:
        z = np.tile(x, (n, 1))
        for _ in range(H):
            z = z - a * G(z)
        p = x - z.mean(0)
        m = b * m + p
        x = x - lr_o * (p + b * m)
        yield np.tile(x, (n, 1))


def push_pull(net, G, x, a, order="cta", A="A", B="B"):
    A, B = net[A], net[B]
    y = g = G(x)
    while True:
        x = A @ x - a * y if order == "cta" else A @ (x - a * y)
        yield x
        gn = G(x)
        y = B @ (y + gn - g) if order == "atc" else B @ y + gn - g
        g = gn


def momentum(net, G, x, a, beta, gamma):
    A, B = net["A"], net["B"]
    s, x_prev = x, x
    g = G(s)
    y = g
    while True:
        xn = A @ s - a * y + beta * (x - x_prev)
        s = xn + gamma * (xn - x)
        x_prev, x = x, xn
        yield x
        gn = G(s)
        y = B @ y + gn - g
        g = gn


def robust_push_pull(net, G, x, a, hears=lambda k, side, i, j: [k]):
    """Packets: ``hears(k, side, i, j)`` are the numbers of the messages of node j that reach node i in step k."""
    A, B, n = net["A"], net["B"], len(x)
    y, g = np.zeros_like(x), np.zeros_like(x)
    sent, sums = [], [np.zeros_like(x)]
    links = [(i, j) for i in range(n) for j in range(n) if i != j]
    used = {link: (-1, np.zeros_like(x[0])) for link in links}  # number and content of the newest message
    model = {(i, j): (-1, x[i]) for i, j in links}
    for k in itertools.count():
        sent.append(x)
        gn = G(x)
        yn, xn = np.diag(B)[:, None] * y + gn - g, np.diag(A)[:, None] * x
        for i, j in links:
            for number in hears(k, "push", i, j) if B[i, j] else ():
                if number > used[i, j][0]:  # a message that was overtaken, or is here again, changes nothing
                    yn[i] += B[i, j] * (sums[number][j] - used[i, j][1])
                    used[i, j] = (number, sums[number][j])
            for number in hears(k, "pull", i, j) if A[i, j] else ():
                if number > model[i, j][0]:
                    model[i, j] = (number, sent[number][j])
            xn[i] += A[i, j] * model[i, j][1]
        y, g = yn, gn
        x = xn - a * y
        sums.append(sums[-1] + y)
        yield x


def push_sum(net, G, x, a):
    u, v = x, np.ones((len(x), 1))
    while True:
        u, v = net["B"] @ u, net["B"] @ v
        yield u / v


def subgradient_push(net, G, x, a):
    u, v = x, np.ones((len(x), 1))
    while True:
        w, v = net["B"] @ u, net["B"] @ v
        z = w / v
        u = w - a * G(z)
        yield z


def sgp(net, G, x, a, order):
    B, u, v, z = net["B"], x, np.ones((len(x), 1)), x
    while True:
        g = G(z)
        u = B @ (u - a * g) if order == "atc" else B @ u - a * g
        v = B @ v
        z = u / v
        yield z


def dextra(net, G, x, a, theta, normalized=False):
    B, n = net["B"], len(x)
    v = n * net["pi_B"][:, None] if normalized else np.ones((n, 1))
    Bt = theta * np.eye(n) + (1 - theta) * B
    u_prev, g_prev = x * v, G(x)
    u = B @ u_prev - a * g_prev
    while True:
        v = v if normalized else B @ v
        z = u / v
        yield z
        g = G(z)
        u, u_prev = u + B @ u - Bt @ u_prev - a * (g - g_prev), u
        g_prev = g


def add_opt(net, G, x, a, mixed=False):
    B, u, v = net["B"], x, np.ones((len(x), 1))
    g = G(x)
    y = g
    while True:
        u = B @ (u - a * y) if mixed else B @ u - a * y
        v = B @ v
        z = u / v
        yield z
        gn = G(z)
        y = B @ y + gn - g
        g = gn


def pull_diag(net, G, x, a):
    A, n, z = net["A"], len(x), x
    V, D, x = np.eye(n), np.ones((n, 1)), x / n
    while True:
        V = A @ V
        Dn = np.diag(V)[:, None]
        x = A @ x + z / (n * Dn) - z / (n * D)
        D = Dn
        yield x


def gradient_pull(net, G, x, a):
    A, V = net["A"], np.eye(len(x))
    while True:
        x = A @ x - a * G(x) / np.diag(V)[:, None]
        V = A @ V
        yield x


def frost(net, G, x, a, order="cta"):
    A, V = net["A"], np.eye(len(x))
    y = h = G(x)
    while True:
        x = A @ (x - a * y) if order == "atc" else A @ x - a * y
        yield x
        V = A @ V
        hn = G(x) / np.diag(V)[:, None]
        y = A @ (y + hn - h) if order == "atc" else A @ y + hn - h
        h = hn


def frozen(net, G, x, a, b):
    A, V = net["A"], np.eye(len(x))
    h = G(x)
    y, q_prev = h, x
    while True:
        q = A @ x - a * y
        x = q + b * (q - q_prev)
        q_prev = q
        yield x
        V = A @ V
        hn = G(x) / np.diag(V)[:, None]
        y = A @ y + hn - h
        h = hn


def d_dngt(net, G, x, a, b):
    A, V = net["A"], np.eye(len(x))
    h, w, x_prev = G(x), x, x
    y = h
    while True:
        xn = A @ w + b * (x - x_prev) - a * y
        w = xn + b * (xn - x)
        x_prev, x = x, xn
        yield x
        V = A @ V
        hn = G(w) / np.diag(V)[:, None]
        y = A @ y + hn - h
        h = hn


def row_extra(net, G, x, a, beta):
    A, V, q = net["A"], np.eye(len(x)), np.zeros_like(x)
    while True:
        xn = A @ x - a * G(x) / np.diag(V)[:, None] - q
        q = q + beta * (x - A @ x)
        V, x = A @ V, xn
        yield x


def dsgd(net, G, x, a, order):
    while True:
        x = net["W"] @ x - a * G(x) if order == "awc" else net["W"] @ (x - a * G(x))
        yield x


def exact_diffusion(net, G, x, a, damped=True):
    W = (np.eye(len(x)) + net["W"]) / 2 if damped else net["W"]
    psi_prev = x
    while True:
        psi = x - a * G(x)
        x = W @ (psi + x - psi_prev)
        psi_prev = psi
        yield x


def nids(net, G, x, a):
    W = (np.eye(len(x)) + net["W"]) / 2
    x_prev, g_prev = x, G(x)
    x = x - a * g_prev
    while True:
        yield x
        g = G(x)
        x, x_prev = W @ (2 * x - x_prev - a * (g - g_prev)), x
        g_prev = g


def extra(net, G, x, a):
    W = net["W"]
    x_prev, g_prev = x, G(x)
    x = W @ x - a * g_prev
    while True:
        yield x
        g = G(x)
        x, x_prev = x + W @ x - (x_prev + W @ x_prev) / 2 - a * (g - g_prev), x
        g_prev = g


def focus(net, G, x, a, K=1, part=lambda _: True):
    n, server, y = len(x), x.mean(0), np.zeros(x.shape[1])
    gp, t = np.zeros_like(x), 0
    while True:
        active = np.broadcast_to(part(t), (n, 1))
        xi, yi, gi = np.tile(server, (n, 1)), np.zeros_like(x), gp
        for k in range(K):
            if k:
                xi = xi - a * yi
            g = G(xi)
            yi, gi = yi + g - gi, g
        y = y + (active * yi).sum(0)
        gp = np.where(active, gi, gp)
        server = server - a * y
        t += 1
        yield np.tile(server, (n, 1))


def tracked_local_steps(net, G, x, a, H=4, order="atc"):
    """Card T4 with plain descent inside."""
    A, B = net["A"], net["B"]
    y = h = np.zeros_like(x)
    while True:
        z, corr, total = x, y - h, np.zeros_like(x)
        for _ in range(H):
            g = G(z)
            total = total + g
            z = z - a * (g + corr)
        hn = total / H
        if order == "atc":
            y = B @ (y + hn - h)
        else:
            y = B @ y + hn - h
        x = A @ x + (z - x) if order == "cta" else A @ z
        h = hn
        yield x


def tracked_pseudo_gradients(net, G, x, a, H=4, order="atc", lr_o=0.7, b=0.5):
    """Card T5 with plain descent inside: outer Nesterov, start minus end."""
    A, B = net["A"], net["B"]
    y = p_last = m = np.zeros_like(x)
    while True:
        z = x
        for _ in range(H):
            z = z - a * G(z)
        p = x - z
        y = B @ (y + p - p_last) if order == "atc" else B @ y + p - p_last
        p_last = p
        m = b * m + y
        d = lr_o * (y + b * m)
        x = A @ x - d if order == "cta" else A @ (x - d)
        yield x


def variance_reduced(net, G, x, a, kind="saga", A="A", B="B", push=False, period=1000):
    """In the order of the publications: the model, a sample, the estimate, the tracker. Tables hold points, not gradients."""
    m, grad, B = net["m"], net["sample_grad"], net[B]

    def full(i, points):
        return sum(grad(i, s, z) for s, z in enumerate(points)) / m[i]

    tables = [[x[i]] * m[i] for i in range(len(x))]
    g = np.stack([full(i, tables[i]) for i in range(len(x))])
    y, u, v, k = g, x, np.ones((len(x), 1)), 0
    while True:
        if push:
            u, v = B @ u - a * y, B @ v
            x = u / v
        else:
            x = net[A] @ x - a * y
        yield x
        k += 1
        estimates = []
        for i, s in enumerate(net["drawn"](k)):
            if kind == "svrg" and k % period == 0:
                tables[i] = [x[i]] * m[i]
            estimates.append(grad(i, s, x[i]) - grad(i, s, tables[i][s]) + full(i, tables[i]))
            if kind == "saga":
                tables[i][s] = x[i]
        y, g = B @ y + np.stack(estimates) - g, np.stack(estimates)


TWINS = {
    "centralized": centralized,
    "diloco": diloco,
    "local_sgd": lambda *z: diloco(*z, lr_o=1.0, b=0.0),
    "push_pull": push_pull,
    "push_pull_pu": lambda *z: push_pull(*z, order="pu"),
    "push_pull_atc": lambda *z: push_pull(*z, order="atc"),
    "abm": lambda *z: momentum(*z, 0.3, 0.0),
    "abn": lambda *z: momentum(*z, 0.0, 0.3),
    "app": lambda *z: momentum(*z, 0.2, 0.2),
    "constrained_push_pull": push_pull,
    "robust_push_pull": robust_push_pull,
    "local_push_pull": tracked_local_steps,
    "push_pull_diloco": tracked_pseudo_gradients,
    "push_sum": push_sum,
    "subgradient_push": subgradient_push,
    "sgp": lambda *z: sgp(*z, "atc"),
    "sgp_cta": lambda *z: sgp(*z, "cta"),
    "extra_push": lambda *z: dextra(*z, 0.5),
    "normalized_extra_push": lambda *z: dextra(*z, 0.5, normalized=True),
    "dextra": lambda *z: dextra(*z, 0.25),
    "add_opt": add_opt,
    "push_diging": lambda *z: add_opt(*z, mixed=True),
    "pull_diag": pull_diag,
    "gradient_pull": gradient_pull,
    "frost": frost,
    "pull_diag_gt": lambda *z: frost(*z, order="atc"),
    "frozen": lambda *z: frozen(*z, 0.2),
    "d_dngt": lambda *z: d_dngt(*z, 0.2),
    "row_extra": lambda *z: row_extra(*z, 0.25),
    "dsgd": lambda *z: dsgd(*z, "awc"),
    "dsgd_atc": lambda *z: dsgd(*z, "atc"),
    "exact_diffusion": exact_diffusion,
    "nids": nids,
    "d2": lambda *z: exact_diffusion(*z, damped=False),
    "extra": extra,
    "diging": lambda *z: push_pull(*z, A="W", B="W"),
    "next": lambda *z: push_pull(*z, order="pu", A="W", B="W"),
    "aug_dgm": lambda *z: push_pull(*z, order="atc", A="W", B="W"),
    "btpp": lambda *z: push_pull(*z, order="pu", A="R", B="C"),
    "stpp": lambda *z: push_pull(*z, order="pu", A="R", B="C"),
    "focus": focus,
    "focus_sampled": lambda *z: focus(*z, K=3, part=z[0]["part"]),
    "ab_saga": variance_reduced,
    "ab_svrg": lambda *z: variance_reduced(*z, kind="svrg"),
    "push_saga": lambda *z: variance_reduced(*z, push=True),
    "gt_saga": lambda *z: variance_reduced(*z, A="W", B="W"),
}
