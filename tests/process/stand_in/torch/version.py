__version__ = '1.0+stand.in'  # fmt: skip
