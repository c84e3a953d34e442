"""The ops in C++ for the CPU, compiled on the machine they run on (`build`) and loaded when their
library is there (`load`). Plain torch serves wherever it is not."""
