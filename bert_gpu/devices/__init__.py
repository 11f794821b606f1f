"""The GPUs of this machine, the workers that train together on one or several machines, and the
launcher of workers.
"""
