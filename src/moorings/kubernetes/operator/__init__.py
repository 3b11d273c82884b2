"""The operator: one look at an IPUJob, a plan, and the actions that follow; its webhooks, metrics and uninstallation.

``plan`` decides and does no IO; ``executor`` acts and decides nothing. Start reading at ``plan``, then ``reconciler``.
"""
