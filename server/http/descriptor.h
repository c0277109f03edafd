// Descriptors of sockets have the owner that all descriptors have.
#pragma once

#include "engine/base/descriptor.h"
