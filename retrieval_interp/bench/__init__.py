"""The workbench: a model, its task and a circuit, which notebooks and the explorer work on."""
