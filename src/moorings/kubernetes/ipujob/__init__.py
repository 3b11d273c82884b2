"""An IPUJob as a value: its fields, its definition for the API server, how it is read and checked, its names and Pods.

Start reading at ``types``, then ``fields``.
"""
