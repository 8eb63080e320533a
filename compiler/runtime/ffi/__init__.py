"""The TVM FFI: functions, modules and arrays in its calling convention."""
