"""What a run will need on a TPU slice, said by the TPU's own compiler before anyone rents one."""
