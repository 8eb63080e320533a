"""Code generation: loop IR to LLVM IR, object code or PTX."""
