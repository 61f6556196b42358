// Message members of a oneof, set so that a failed allocation does no harm. The generated
// mutable_X() marks the member as set before it allocates the member. If the allocation fails, the
// destructor of the parent frees a pointer that was never written.
#pragma once

#include <memory>

#include "quintet/v1/inference.pb.h"

namespace quintet {

// Sets a member to an empty message and returns it. `set`: the parent's set_allocated_X.
template <typename Parent, typename Member>
Member* SetMember(Parent* parent, void (Parent::*set)(Member*)) {
  auto owned = std::make_unique<Member>();
  Member* const member = owned.get();
  (parent->*set)(owned.release());
  return member;
}

// The token ids of an input, which has no text then.
inline v1::TokenIds* MutableTokenIds(v1::Input* input) {
  return input->has_token_ids() ? input->mutable_token_ids()
                                : SetMember(input, &v1::Input::set_allocated_token_ids);
}

}  // namespace quintet
