"""Suppose what heads do, one line after the other: python examples/suppose_a_circuit.py [LINE ...]

A line that makes the model fail is taken back. The same as in a notebook, in a terminal.
"""

import sys

import retrieval_interp as ri

lines = sys.argv[1:] or [
    "L4.H0 one-hot s0<-s4",
    "L2.H0 one-hot s0<-s2 s4<-s6",
    "L0.H0 one-hot s2<-s1 s4<-s3 s6<-s5",  # too sharp: this head splits its attention
    "L0.H0 shared s2<-s1 s2<-s2 s4<-s3 s4<-s4 s6<-s5 s6<-s6",
]
bench = ri.open("small")
print(bench.roles())
for line in lines:
    print(f"\nsuppose {line}\n{bench.suppose(line)}")
    if bench.loss >= bench.tolerance:
        bench.undo()
        print("taken back")
print(f"\n{bench.score()}")
