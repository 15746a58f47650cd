"""Numbers of the paper with which ours are compared."""

LEARNED = 0.01  # section 8.2: validation MSE of A, B and C
SUFFICIENT = 0.05  # appendix E: MSE with all heads replaced
PATHS = (0.17, 0.89)  # the same without one more path
FIRST_LAYER = (0.05, 0.10)  # without one of the first useful layer
HEADS = 4  # section 8.2: useful heads of A, B and C
D_LEARNED = 0.031  # section 9.2: validation MSE of D
D_SUFFICIENT = 0.045  # the same with its circuit in place
