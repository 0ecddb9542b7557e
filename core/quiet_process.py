"""The first module of processes that begin as copies of a server: it is imported before PEFT, which prints at once."""

from .quiet import silence_libraries

silence_libraries()
