"""The speed table: Bellglass against its bounds and against its peers, in one run on one machine.

`python -m benchmarks` prints it; README.md beside this file says what each row measures.
"""
