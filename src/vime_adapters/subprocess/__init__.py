"""Local processes: the embedded default executor.

One small supervisor per process of the plan owns everything below it, so that nothing outlives a driver, however the
driver ends. The supervisors import this package too: keep this file empty of imports.
"""
