"""Every scheduler of torch, by name, as a function of the optimizer."""

from torch.optim import lr_scheduler, swa_utils

STEPS = 6
SCHEDULES = {
    "LambdaLR": lambda one: lr_scheduler.LambdaLR(one, lambda epoch: min(1.0, epoch / 3)),
    "MultiplicativeLR": lambda one: lr_scheduler.MultiplicativeLR(one, lambda _: 0.8),
    "StepLR": lambda one: lr_scheduler.StepLR(one, 2),
    "MultiStepLR": lambda one: lr_scheduler.MultiStepLR(one, [1, 3]),
    "ConstantLR": lambda one: lr_scheduler.ConstantLR(one, total_iters=3),
    "LinearLR": lambda one: lr_scheduler.LinearLR(one, total_iters=3),
    "ExponentialLR": lambda one: lr_scheduler.ExponentialLR(one, 0.7),
    "CosineAnnealingLR": lambda one: lr_scheduler.CosineAnnealingLR(one, 5),
    "CosineAnnealingWarmRestarts": lambda one: lr_scheduler.CosineAnnealingWarmRestarts(one, 2),
    "CyclicLR": lambda one: lr_scheduler.CyclicLR(one, 0.01, 0.1, step_size_up=2),
    "OneCycleLR": lambda one: lr_scheduler.OneCycleLR(one, 0.1, total_steps=STEPS + 1),
    "PolynomialLR": lambda one: lr_scheduler.PolynomialLR(one, total_iters=4),
    "ReduceLROnPlateau": lambda one: lr_scheduler.ReduceLROnPlateau(one, patience=0, threshold=1.0),
    "SequentialLR": lambda one: lr_scheduler.SequentialLR(
        one, [lr_scheduler.ConstantLR(one), lr_scheduler.ExponentialLR(one, 0.7)], [2]
    ),
    "ChainedScheduler": lambda one: lr_scheduler.ChainedScheduler(
        [lr_scheduler.ConstantLR(one), lr_scheduler.ExponentialLR(one, 0.7)]
    ),
    "SWALR": lambda one: swa_utils.SWALR(one, 0.01, anneal_epochs=2),
}
