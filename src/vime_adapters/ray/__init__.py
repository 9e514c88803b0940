"""Ray: one actor for each node rank of a plan, on the hosts of a Ray cluster.

Ray places and carries messages. It does not own processes here: every actor runs the executor of local processes, whose
supervisors end what vLLM started whatever becomes of the actor.
"""
