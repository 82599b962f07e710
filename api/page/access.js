// This tab's token, and requests that carry it.

const KEY = "edged.token";

export const token = () => sessionStorage.getItem(KEY);

export const remember = (text) => sessionStorage.setItem(KEY, text);

/** Headers of a request with this tab's token. */
export const headers = (more = {}) => (token() ? { ...more, Authorization: `Bearer ${token()}` } : more);

/** Text of a refusal: the problem's detail, or the status of a proxy's answer. */
export async function refusal(answer) {
  const told = await answer.json().catch(() => ({}));
  return told.detail ?? `status ${answer.status}`;
}

/** Whether an answer says that the token is missing, unknown or lacks a scope. */
export const denied = (answer) => answer.status === 401 || answer.status === 403;
