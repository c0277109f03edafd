// Kernels on rows: of activations, of queries and keys, of the table of embeddings, of values that
// are a part of no product, and a plain read.
#include "engine/kernels/cuda/gpu_code.h"
#include "engine/kernels/cuda/kernel_file.h"
// After it.
#include "engine/kernels/cuda/embedding.inl.h"
#include "engine/kernels/cuda/heads.inl.h"
#include "engine/kernels/cuda/read.inl.h"
#include "engine/kernels/cuda/rows.inl.h"
#include "engine/kernels/cuda/values.inl.h"
