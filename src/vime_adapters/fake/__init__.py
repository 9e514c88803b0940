"""A world in virtual time that satisfies the seams: what executors and controls do, without anything real.

agenda: the clock. processes, executor: what exists, behind the seam `Executor`. world, times: the engines and routers
of a plan. mishaps, script, fate: what goes wrong. hands: the other seams. life, chronicle, summary: a whole life in
figures.
"""
